//! Laws of planning what activations travel by.

use proptest::prelude::*;
use thinwire_model::{AttentionKind, Gpt};
use thinwire_plan::cost::{Coding, Division, Precision, Sharding};
use thinwire_plan::pipeline::Schedule;
use thinwire_plan::report::{PlanFile, plan_file, report};
use thinwire_plan::search::{Candidate, Found, Planner, Rule, Settings, costs};
use thinwire_plan::{Cluster, Error};

/// What one encoding may lose: nothing, what `f16` does, `int8`, `int4`.
const BUDGETS: [f64; 4] = [0.0, 1e-6, 0.01, 0.1];

fn cluster(gbit: f64) -> Cluster {
    let text = format!(
        "[[device]]\nname = \"a100\"\ntflops = 312\nmemory_gib = 80\n\
         memory_gbyte_per_s = 2039\nmemory_efficiency = 0.7\noverhead_us = 10\n\
         efficiency = [[0.1, 0.01], [10, 0.4], [1000, 0.8]]\n\
         [[level]]\nname = \"node\"\nsize = 2\nlatency_us = 5\ngbit = 2400\n\
         [[level]]\nname = \"pod\"\nsize = 2\nlatency_us = 10\ngbit = {gbit}\n"
    );
    Cluster::parse(&text).unwrap()
}

fn settings(names: &[&str], activation_budget: f64) -> Settings {
    let codings = names.iter().map(|name| Coding::of_activations(name).unwrap());
    let precision = Precision::SINGLE;
    let activation_codings = codings.collect();
    Settings { precision, activation_codings, activation_budget, ..Settings::default() }
}

fn planner(settings: Settings) -> Planner {
    let model = Gpt {
        layers: 4,
        hidden: 512,
        heads: 8,
        feed_forward: 2048,
        vocabulary: 8192,
        positions: 256,
        attention: AttentionKind::Fused,
        dropout: 0.0,
    };
    Planner::new(16, settings, move |batch| {
        model.graph(batch, 256).map_err(|error| Error::from_model(&error))
    })
}

fn candidate(stages: usize, mesh: &[usize], rule: Rule) -> Candidate {
    let division = Division::Alike(Sharding::Optimizer);
    Candidate { stages, mesh: mesh.to_vec(), micro_batches: 4, division, rule }
}

/// Two stages across the nodes, and operators cut across them.
fn candidates() -> [Candidate; 2] {
    [candidate(2, &[2], Rule::Data), candidate(1, &[1, 4], Rule::Grid)]
}

fn planned(settings: Settings, cluster: &Cluster, candidate: &Candidate) -> (Planner, Found) {
    let schedule = Some(Schedule::OneForwardOneBackward);
    let mut planner = planner(Settings { schedule, ..settings });
    let found = planner.plan_for(cluster, candidate).unwrap();
    (planner, found)
}

fn file(planner: &Planner, cluster: &Cluster, found: &Found) -> PlanFile {
    plan_file("small", 256, planner, cluster, found).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    #[test]
    fn no_level_loses_more_than_the_budget(gbit in 0.1_f64..1e4, budget in 0.0_f64..0.05) {
        let names = ["f16", "bf16", "int8", "e4m3", "int4", "int3"];
        let (cluster, settings) = (cluster(gbit), settings(&names, budget));
        for candidate in candidates() {
            let chosen = costs(&cluster, &candidate, &settings).activations;
            prop_assert_eq!(chosen.len(), 2);
            prop_assert!(chosen.iter().flatten().all(|coding| coding.loss <= budget));
        }
    }

    #[test]
    fn a_larger_budget_is_never_slower(gbit in 0.1_f64..1e4, codec_gbyte_per_s in 1.0_f64..500.0) {
        let mut cluster = cluster(gbit);
        cluster.devices[0].codec_bytes_per_s = 1e9 * codec_gbyte_per_s;
        for candidate in candidates() {
            let mut least = planned(settings(&[], 0.01), &cluster, &candidate).1.best.seconds;
            for budget in BUDGETS {
                let settings = settings(&["int4", "int8", "f16", "bf16"], budget);
                let (planner, found) = planned(settings, &cluster, &candidate);
                let seconds = found.best.seconds;
                prop_assert!(seconds <= least, "{budget}: {seconds}, less lost {least}");
                prop_assert!(found.best.activation_budget <= budget && found.bound_s <= seconds);
                for activation in file(&planner, &cluster, &found).activation {
                    let coding = Coding::of_activations(&activation.name).unwrap();
                    prop_assert!(coding.loss <= budget, "{activation:?}, {budget}");
                }
                least = seconds;
            }
        }
    }
}

#[test]
fn a_search_with_a_larger_budget_is_never_slower() {
    for (gbit, codec_gbyte_per_s) in [(1.0, 480.0), (25.0, 2.0), (400.0, 20.0)] {
        let mut cluster = cluster(gbit);
        cluster.devices[0].codec_bytes_per_s = 1e9 * codec_gbyte_per_s;
        let mut least = f64::INFINITY;
        for budget in BUDGETS {
            let mut planner = planner(settings(&["int4", "int8", "f16"], budget));
            let found = planner.plan(&cluster).unwrap();
            let seconds = found.best.seconds;
            assert!(seconds <= least, "{gbit}, {budget}: {seconds}, less lost {least}");
            assert!(found.bound_s <= seconds);
            assert!(found.others.iter().all(|other| other.seconds >= seconds));
            least = seconds;
        }
    }
}

#[test]
fn thin_links_carry_less() {
    for (candidate, gbit) in candidates().into_iter().zip([1.0, 400.0]) {
        let cluster = cluster(gbit);
        let (_, raw) = planned(settings(&[], 0.01), &cluster, &candidate);
        for (name, part) in [("f16", 0.5), ("int8", 0.25)] {
            let (planner, found) = planned(settings(&[name], 0.01), &cluster, &candidate);
            let (slow, fast) = (raw.best.seconds, found.best.seconds);
            assert!(fast < 0.985 * slow, "{name}, {candidate:?}: {fast}, raw {slow}");
            let bytes = |found: &Found| found.best.stages[0].message_bytes;
            let sent = (bytes(&found), bytes(&raw));
            assert!((sent.0 - part * sent.1).abs() <= 0.02 * sent.1, "{name}: {sent:?}");
            let file = file(&planner, &cluster, &found);
            let [one] = &file.activation[..] else { panic!("{:?}", file.activation) };
            let expected = (name, Some("pod"), Some(2));
            assert_eq!((&one.name[..], one.level.as_deref(), one.within), expected);
            let said = format!("activations travel as {name} over level 'pod'");
            assert!(report(&planner, &cluster, &found).unwrap().contains(&said));
        }
    }
}

#[test]
fn what_gains_nothing_is_not_encoded() {
    let candidate = candidate(2, &[2], Rule::Data);
    let thin = cluster(1.0);
    for (names, budget, cluster) in [
        (&["int8"][..], 0.0, &thin),
        (&["int4"], 0.01, &thin),
        (&["none"], 0.01, &thin),
        (&["int8"], 0.01, &cluster(1e5)),
    ] {
        let (planner, found) = planned(settings(names, budget), cluster, &candidate);
        let file = file(&planner, cluster, &found);
        assert!(file.activation.is_empty(), "{names:?}, {budget}: {:?}", file.activation);
    }
    // In half precision 16 bits are what there is anyway.
    let half = Settings { precision: Precision::MIXED, ..settings(&["f16", "bf16"], 0.01) };
    assert_eq!(costs(&thin, &candidate, &half).activations, [None, None]);
}

#[test]
fn files_with_and_without_codecs_of_activations_are_read() {
    let cluster = cluster(1.0);
    let candidate = candidate(2, &[2], Rule::Data);
    for (names, version) in [(&[][..], 1), (&["int8"], 2)] {
        let (planner, found) = planned(settings(names, 0.01), &cluster, &candidate);
        let file = file(&planner, &cluster, &found);
        assert_eq!(file.version, version);
        assert_eq!(PlanFile::parse(&file.text()).unwrap(), file);
    }
    let (planner, found) = planned(settings(&["int8"], 0.01), &cluster, &candidate);
    let mut file = file(&planner, &cluster, &found);
    file.activation.push(file.activation[0].clone());
    file.activation[1].name = "bf16".to_owned();
    let error = PlanFile::parse(&file.text()).unwrap_err().to_string();
    assert_eq!(error, "activations have 'int8' and 'bf16' within 2, expected one of them");
    file.activation.pop();
    let text = file.text();
    let changed = |from: &str, to: &str| {
        assert!(text.contains(from), "{from} in {text}");
        PlanFile::parse(&text.replace(from, to)).unwrap_err().to_string()
    };
    let level = format!("level = \"{}\"\n", file.activation[0].level.as_deref().unwrap());
    for (from, to, expected) in [
        (
            "version = 2",
            "version = 1",
            "a plan of version 1 has activations by 'int8', expected version 2",
        ),
        (
            "within = 2",
            "within = 0",
            "codec 'int8' is not used within 0 devices, expected 1 or more",
        ),
        (&level[..], "", "codec 'int8' has within = 2 without a level, expected both or none"),
    ] {
        assert!(changed(from, to).contains(expected), "{}", changed(from, to));
    }
    file.mesh = vec![1 << 40, 1 << 40];
    let error = PlanFile::parse(&file.text()).unwrap_err().to_string();
    assert!(error.ends_with("are too many devices to count"), "{error}");
}

#[test]
fn what_loses_nearly_all_is_refused() {
    for name in ["vote", "tbq:0.1"] {
        let error = Coding::of_activations(name).unwrap_err().to_string();
        let found = format!("codec {name} loses ");
        assert!(error.starts_with(&found), "{error}");
        assert!(error.ends_with(" of activations, expected less than 0.4"), "{error}");
    }
    assert!(Coding::of_activations("powersgd:4").is_err());
}
