//! Laws of the search: never worse than experts, experts' ideas found untold, honest errors.

mod made;

use thinwire_model::{AttentionKind, Gpt, Graph};
use thinwire_plan::cost::{Costs, Division, Precision, Sharding};
use thinwire_plan::report::{PlanFile, explain, plan_file, report, traffic};
use thinwire_plan::search::{Chain, Found, Planner, Prepared, Rule, Settings};
use thinwire_plan::stage::Weights;
use thinwire_plan::{Cluster, Error};
use thinwire_wire::Hint;

fn cluster(nodes: usize, gbit: f64, memory_gib: f64) -> Cluster {
    made::cluster(nodes, 4, gbit, memory_gib)
}

fn gpt(layers: usize, hidden: usize, attention: AttentionKind) -> Gpt {
    Gpt { attention, ..made::gpt(layers, hidden, 512) }
}

fn graph(model: Gpt, batch: usize) -> Result<Graph, Error> {
    model.graph(batch, 512).map_err(|error| Error::from_model(&error))
}

fn planner(model: Gpt, batch: usize) -> Planner {
    made::planner(model, batch, Settings::default())
}

fn small() -> Planner {
    planner(gpt(6, 512, AttentionKind::Fused), 32)
}

fn plan(nodes: usize, gbit: f64, memory_gib: f64) -> Found {
    small().plan(&cluster(nodes, gbit, memory_gib)).unwrap()
}

#[test]
fn no_expert_is_faster_and_no_plan_beats_the_bound() {
    for (nodes, gbit, memory_gib) in
        [(1, 25.0, 80.0), (4, 1.0, 80.0), (4, 800.0, 80.0), (2, 25.0, 1.0)]
    {
        let found = plan(nodes, gbit, memory_gib);
        for (expert, plan) in &found.experts {
            let Ok(plan) = plan else { continue };
            assert!(found.best.seconds <= plan.seconds, "{} on {nodes} nodes", expert.name());
        }
        assert!(found.bound_s <= found.best.seconds && found.bound_s > 0.0);
        let limit = memory_gib * f64::from(1 << 30);
        assert!(found.best.bytes() <= 0.9 * limit, "{} of {limit}", found.best.bytes());
    }
}

/// The cuts of a block's nodes on the second of two mesh dimensions.
fn cuts(rule: Rule) -> Vec<(String, String)> {
    let model = Gpt { positions: 2048, ..gpt(3, 4096, AttentionKind::Fused) };
    let prepared = Prepared::new(model.graph(16, 2048).unwrap()).unwrap();
    let cluster = cluster(16, 100.0, 80.0);
    let costs = Costs::new(&cluster, &[16, 4], Precision::MIXED);
    let chain = Chain::new(&prepared, &costs, rule).unwrap();
    let (_, choice) = chain.solve(&Weights::ONCE, 0.0);
    let way = choice.of_block[2];
    let named = chain.strategies(&choice, way).into_iter().map(|(id, strategy)| {
        let node = &prepared.graph.nodes[id];
        let cuts = prepared.graph.declaration(node).describe(strategy);
        (node.name.split_once('.').unwrap().1.split_once('.').unwrap().1.to_owned(), cuts)
    });
    named.collect()
}

#[test]
fn tensor_and_sequence_parallelism_are_found_untold() {
    for (node, cut) in cuts(Rule::Free) {
        let expected = match node.as_str() {
            "attention.norm" | "mlp.norm" | "attention.add" | "mlp.add" => "b,s",
            "attention.qkv" | "mlp.up" | "mlp.gelu" => "b,n",
            "attention.projection" | "mlp.down" => "b,k",
            _ => continue,
        };
        assert_eq!(cut, expected, "{node}");
    }
}

#[test]
fn a_plan_file_is_read_back_and_fits_its_model_alone() {
    let (mut planner, cluster) = (small(), cluster(2, 25.0, 80.0));
    let found = planner.plan(&cluster).unwrap();
    let file = plan_file("small", 512, &planner, &cluster, &found).unwrap();
    assert_eq!(PlanFile::parse(&file.text()).unwrap(), file);
    let prepared = planner.prepared(&found.best.candidate).unwrap();
    let strategies = file.strategies(&prepared.graph).unwrap();
    assert_eq!(strategies.len(), prepared.graph.nodes.len());
    let other = graph(gpt(5, 512, AttentionKind::Fused), 32).unwrap();
    let error = file.strategies(&other).unwrap_err().to_string();
    assert!(error.contains(&file.fingerprint) && error.contains("this one has"), "{error}");
    let mut edited = file.clone();
    edited.way[1].nodes.values_mut().for_each(|cut| *cut = "q".to_owned());
    let error = edited.strategies(&prepared.graph).unwrap_err().to_string();
    assert!(error.contains("'q' is no axis, expected one of -, "), "{error}");
    let refused = |from: &str, to: &str| {
        let text = file.text();
        assert!(text.contains(from), "{from} in {text}");
        let read = PlanFile::parse(&text.replacen(from, to, 1));
        let read = read.and_then(|file| file.strategies(&prepared.graph));
        read.unwrap_err().to_string()
    };
    let line = |field: &str| {
        let text = file.text();
        text.lines().find(|line| line.starts_with(field)).unwrap().to_owned()
    };
    let starved =
        format!("micro_batches = {}\nshares = {:?}", file.micro_batches, vec![0; file.mesh[0]]);
    let chunks = |chunks: i64| format!("schedule = {{ interleaved = {{ chunks = {chunks} }} }}");
    for (from, to, expected) in [
        ("version = 1", "version = 99", "a plan of version 99, expected 1 to 2"),
        (&line("step_s"), "step_s = nan", "step_s is NaN, expected a number of at least 0"),
        (&line("bound_s"), "bound_s = -1", "bound_s is -1, expected a number of at least 0"),
        (&line("batch"), "batch = 12\nshares = [1, 1, 1, 1, 1, 1, 1, 1, 1]", "shares of 9 parts"),
        (&line("micro_batches"), &starved, "that add up to "),
        (&line("schedule"), &chunks(0), "schedule has 0 chunks a stage, expected 1 to "),
        (
            &line("schedule"),
            &chunks(i64::MAX),
            "schedule has 9223372036854775807 chunks a stage, expected 1 to ",
        ),
        (&line("micro_batches"), "micro_batches = 24", "batch of 32 does not divide into 24 micro"),
        (&line("micro_batches"), "micro_batches = 65537", "65537 micro-batches, expected 1 to"),
        (
            "\nblocks = [",
            "\nblocks = [\"tail\", ",
            "a way is for block 'tail', but the model has no such block",
        ),
        ("\nblocks = [", "\nblocks = [\"head\", ", "block 'head' appears twice in ways"),
        (
            "[way.nodes]\n",
            "[way.nodes]\nodd = \"-\"\n",
            "a way cuts node 'odd', but block 'embedding'",
        ),
        ("[[way]]", "[[codec]]\nname = \"int8\"\nparameters = []\n[[way]]", "encodes 0 parameters"),
    ] {
        let error = refused(from, to);
        assert!(error.contains(expected) && !error.contains('\n'), "{to}: {error}");
    }
    let unnamed = file.text().replace("version = 1\n", "");
    assert_eq!(
        PlanFile::parse(&unnamed).unwrap(),
        file,
        "files without a version are of the first"
    );
    assert!(PlanFile::parse("model = 3").unwrap_err().to_string().starts_with("line 1: "));
    let text = report(&planner, &cluster, &found).unwrap();
    assert!(text.contains("data parallel") && text.contains("the gap is"), "{text}");
}

#[test]
fn a_node_is_explained_strategy_by_strategy() {
    let (mut planner, cluster) = (small(), cluster(2, 25.0, 80.0));
    let found = planner.plan(&cluster).unwrap();
    let text = explain(&planner, &cluster, &found, "block.3.mlp.up").unwrap();
    let rows: Vec<&str> = text.lines().filter(|line| line.contains(" MiB ")).collect();
    let chosen = rows.iter().position(|row| row.starts_with("* ")).unwrap();
    // What was chosen is best, but for the multiplier's gap.
    assert!(rows[chosen].contains("  0."), "{text}");
    assert!(rows[0].ends_with("  0.00 %") && text.lines().last().unwrap().contains(": "), "{text}");
    assert_eq!(text, explain(&planner, &cluster, &found, "block.3.mlp.up").unwrap());
    assert!(
        explain(&planner, &cluster, &found, "mlp.down")
            .unwrap()
            .starts_with("block.0.mlp.down in ")
    );
    let error = explain(&planner, &cluster, &found, "mlp.middle").unwrap_err();
    assert!(error.to_string().starts_with("'mlp.middle' is none of the model's "), "{error}");
    assert!(error.hint().unwrap().starts_with("nodes are called "));
}

#[test]
fn what_products_send_is_counted() {
    let (mut planner, cluster) = (small(), cluster(2, 25.0, 80.0));
    let found = planner.plan(&cluster).unwrap();
    let (_, data) = &found.experts[0];
    let data = Found { best: data.clone().unwrap(), ..found };
    let graph = &planner.prepared(&data.best.candidate).unwrap().graph;
    let products = traffic(&planner, &cluster, &data).unwrap().products;
    for product in products.iter().filter(|one| one.name.contains(".mlp.")) {
        let node = graph.nodes.iter().find(|node| node.name == product.name).unwrap();
        let weight = graph.tensors[node.inputs[1]].elements() as f64;
        let expected = product.blocks as f64 * 2.0 * 7.0 / 8.0 * 2.0 * weight;
        assert!((product.sent_bytes / expected - 1.0).abs() < 1e-9, "{product:?} {expected}");
    }
    assert!(products.iter().any(|one| one.name.contains(".mlp.")), "{products:?}");
    let text = report(&planner, &cluster, &data).unwrap();
    assert!(text.contains(" times the least where operands lie so"), "{text}");
}

#[test]
fn what_cannot_fit_says_by_how_much() {
    let mut large = planner(gpt(6, 2048, AttentionKind::Fused), 8);
    let error = large.plan(&cluster(1, 25.0, 0.25)).unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("the smallest plan needs "), "{message}");
    assert!(message.ends_with("expected at most 230 MiB"), "{message}");
    let hint = error.hint().unwrap();
    assert!(
        hint.starts_with("recomputation, ZeRO 3 and the smallest micro-batches are not"),
        "{hint}"
    );
    // What the hint says is true.
    let gib: f64 = hint.rsplit_once(" GiB").unwrap().0.rsplit_once(' ').unwrap().1.parse().unwrap();
    assert!(large.plan(&cluster(1, 25.0, gib)).is_ok(), "{hint}");
    let devices = hint.split_once("; ").unwrap().1.split(' ').next().unwrap();
    if let Ok(devices) = devices.parse::<usize>() {
        assert!(large.plan(&cluster(devices / 4, 25.0, 0.25)).is_ok(), "{hint}");
    }
}

/// The smallest plan is one that was made: with memory for it, and no more, it is found.
#[test]
fn what_the_smallest_plan_needs_is_enough() {
    for name in ["vgg16", "bert-base", "gpt2"] {
        let sequence = thinwire_model::usual_sequence(name).min(128);
        let mut planner = Planner::new(12, Settings::default(), move |batch| {
            thinwire_model::named(name, batch, sequence).map_err(|error| Error::from_model(&error))
        });
        for memory_gib in [0.02, 0.1] {
            let mut cluster = made::cluster(1, 6, 25.0, memory_gib);
            let needed = planner.plan(&cluster).unwrap_err().needed_bytes().unwrap();
            cluster.devices[0].memory_bytes = needed / 0.9 * (1.0 + 1e-9);
            let found = planner.plan(&cluster);
            assert!(found.is_ok(), "{name}, {memory_gib} GiB: {needed} bytes, {:?}", found.err());
        }
    }
}

#[test]
fn a_layer_keeps_what_the_published_formula_says_but_for_masks() {
    let (batch, hidden, tensor) = (8, 1024, 4);
    let model = Gpt { dropout: 0.1, ..gpt(3, hidden, AttentionKind::Plain) };
    let prepared = Prepared::new(graph(model, batch).unwrap()).unwrap();
    let cluster = cluster(1, 25.0, 80.0);
    let [sequence, heads] = [512.0, model.heads as f64];
    let whole = sequence * batch as f64 * hidden as f64;
    // Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", table 2.
    let formula = whole * (34.0 + 5.0 * heads * sequence / hidden as f64);
    // One byte an element of three dropouts, two of features and one of attention's scores.
    let masks = 2.0 * whole + heads * sequence.powi(2) * batch as f64;
    let published = formula - masks;
    let kept = |mesh: &[usize], rule| {
        let costs = Costs::new(&cluster, mesh, Precision::MIXED);
        let chain = Chain::new(&prepared, &costs, rule).unwrap();
        let weights = Weights { activation: 1.0, ..Weights::ONCE };
        let (_, choice) = chain.solve(&weights, 1.0);
        chain.costs(&choice)[2].activation_bytes
    };
    let ours = kept(&[1], Rule::Data);
    assert!((ours / published - 1.0).abs() < 0.02, "{ours}, expected {published}");
    let ours = kept(&[1, tensor], Rule::Grid) * tensor as f64;
    assert!((ours / published - 1.0).abs() < 0.02, "{ours}, expected {published}");
}

#[test]
fn dividing_states_takes_the_published_bytes() {
    // 7.5 billion parameters on 64 ranks: Rajbhandari et al., "ZeRO", figure 1.
    let cluster = cluster(16, 100.0, 80.0);
    let by_batch = thinwire_model::Sides {
        value: thinwire_model::Layout(vec![thinwire_model::Placement::Replicated]),
        gradient: thinwire_model::Layout(vec![thinwire_model::Placement::Partial(
            thinwire_model::Reduction::Sum,
        )]),
    };
    for (sharding, gigabytes) in [
        (Sharding::None, 120.0),
        (Sharding::Optimizer, 31.4),
        (Sharding::Gradients, 16.6),
        (Sharding::Parameters, 1.88),
    ] {
        let mut costs = Costs::new(&cluster, &[64], Precision::MIXED);
        costs.division = Division::Alike(sharding);
        let state = costs.parameter(&[7500, 1_000_000], &by_batch).state_bytes / 1e9;
        assert!((state / gigabytes - 1.0).abs() < 0.005, "{sharding:?}: {state}");
    }
}

#[test]
fn the_slowest_and_the_fastest_machine_have_plans_of_finite_steps() {
    let cluster = |rate: &str, part: &str, time: &str| {
        let rates = ["tflops", "memory_gbyte_per_s", "codec_gbyte_per_s", "handling_gbyte_per_s"];
        let rates: String = rates.iter().map(|field| format!("{field} = {rate}\n")).collect();
        let text = format!(
            "[[device]]\nname = \"rank\"\nmemory_gib = 1e6\n{rates}memory_efficiency = {part}\n\
             overhead_us = {time}\nhandling_us = {time}\nexchange_us = {time}\noperators = {{ attention = {rate} }}\n\
             efficiency = [[1, {part}]]\n[[level]]\nname = \"node\"\nsize = 4\n\
             latency_us = {time}\ngbit = {rate}\n"
        );
        Cluster::parse(&text).unwrap()
    };
    for (rate, part, time) in [("1e-6", "1e-6", "1e9"), ("1e6", "1", "0")] {
        let (mut planner, cluster) = (small(), cluster(rate, part, time));
        let found = planner.plan(&cluster).unwrap();
        assert!(found.best.seconds > 0.0 && found.best.seconds.is_finite(), "{:?}", found.best);
        let file = plan_file("small", 512, &planner, &cluster, &found).unwrap();
        assert_eq!(PlanFile::parse(&file.text()).unwrap(), file);
    }
}
