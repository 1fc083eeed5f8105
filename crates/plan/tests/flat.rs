//! Plans for exchanges that know no levels: what is encoded between hosts is summed within them.

use thinwire_plan::cost::Coding;
use thinwire_plan::report::plan_file;
use thinwire_plan::search::{Planner, Settings};
use thinwire_plan::{Cluster, Error};

const GPT: &str = "gpt:layers=2,width=16,heads=2,vocabulary=256,positions=16";

/// Hosts of some slow cores, and a thin network between them.
fn cluster(cores: usize, hosts: usize) -> Cluster {
    let level = |name: &str, size: usize, gbit: f64| {
        format!("[[level]]\nname = \"{name}\"\nsize = {size}\nlatency_us = 1\ngbit = {gbit}\n")
    };
    let device = "[[device]]\nname = \"core\"\ntflops = 0.0001\nmemory_gib = 1\n\
                  memory_gbyte_per_s = 0.1\ncodec_gbyte_per_s = 10\n";
    Cluster::parse(&format!("{device}{}{}", level("host", cores, 100.0), level("net", hosts, 0.01)))
        .unwrap()
}

#[test]
fn units_of_neighbours_are_encoded_between_hosts() {
    let mut levels = 0;
    for (codecs, error_budget) in
        [(&["int8"][..], 0.01), (&["int8", "int4"], 0.1), (&["topk:0.1"], 0.9), (&["onebit"], 0.9)]
    {
        for (cores, hosts) in [(1, 2), (1, 4), (2, 2)] {
            let codings = codecs.iter().map(|name| Coding::parse(name).unwrap()).collect();
            let settings = Settings { codings, error_budget, ..Settings::of_executor() };
            let mut planner = Planner::new(8, settings, |batch| {
                thinwire_model::named(GPT, batch, 16).map_err(|error| Error::from_model(&error))
            });
            let cluster = cluster(cores, hosts);
            let found = planner.plan(&cluster).unwrap();
            let file = plan_file(GPT, 16, &planner, &cluster, &found).unwrap().text();
            assert!(file.contains("[[codec]]"), "{codecs:?} {cores} {hosts}: {file}");
            levels += file.matches("within = 2").count();
        }
    }
    assert!(levels > 0, "some are encoded between hosts alone");
}
