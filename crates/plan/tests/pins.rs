//! Laws of pins: they hold, what is not pinned is planned, and nonsense is refused.

use thinwire_model::{AttentionKind, Gpt};
use thinwire_plan::report::{PlanFile, plan_file};
use thinwire_plan::search::{Planner, Settings};
use thinwire_plan::{Cluster, Error};
use thinwire_wire::Hint;

fn cluster() -> Cluster {
    let text = "[[device]]\nname = \"a100\"\ntflops = 312\nmemory_gib = 80\n\
         memory_gbyte_per_s = 2039\noverhead_us = 10\n\
         [[level]]\nname = \"node\"\nsize = 4\nlatency_us = 5\ngbit = 2400\n\
         [[level]]\nname = \"pod\"\nsize = 2\nlatency_us = 10\ngbit = 100\n";
    Cluster::parse(text).unwrap()
}

fn plan(pins: &[&str]) -> Result<(f64, PlanFile), Error> {
    let model = Gpt {
        layers: 4,
        hidden: 256,
        heads: 4,
        feed_forward: 1024,
        vocabulary: 1024,
        positions: 128,
        attention: AttentionKind::Fused,
        dropout: 0.0,
    };
    let pins = pins.iter().map(|pin| pin.parse()).collect::<Result<_, Error>>()?;
    let settings = Settings { pins, ..Settings::default() };
    let mut planner = Planner::new(16, settings, move |batch| {
        model.graph(batch, 128).map_err(|error| Error::from_model(&error))
    });
    let found = planner.plan(&cluster())?;
    let file = plan_file("small", 128, &planner, &cluster(), &found)?;
    Ok((found.best.seconds, file))
}

/// How a node of a block is cut.
fn cut<'a>(file: &'a PlanFile, block: &str, node: &str) -> &'a str {
    let way = file.way.iter().find(|way| way.blocks.iter().any(|name| name == block)).unwrap();
    &way.nodes[node]
}

#[test]
fn pins_hold_and_cost_what_they_cost() {
    let (free_s, _) = plan(&[]).unwrap();
    let (pinned_s, file) = plan(&["block.*.mlp.up: n=tensor, b=data"]).unwrap();
    for block in ["block.0", "block.1", "block.2", "block.3"] {
        assert_eq!(cut(&file, block, "mlp.up"), "b,n");
    }
    assert!(pinned_s >= free_s, "{pinned_s} {free_s}");
    assert_eq!(PlanFile::parse(&file.text()).unwrap(), file);
}

#[test]
fn one_block_may_be_pinned_alone() {
    let (_, file) = plan(&["block.2.mlp.up: k=tensor", "block.1.mlp.up: n=tensor"]).unwrap();
    assert!(cut(&file, "block.2", "mlp.up").ends_with(",k"));
    assert!(cut(&file, "block.1", "mlp.up").ends_with(",n"));
    assert!(cut(&file, "block.0", "mlp.up") != cut(&file, "block.2", "mlp.up"));
}

#[test]
fn nonsense_is_refused_with_both_values() {
    for (pins, expected, hint) in [
        (
            &["layers.*.mlp.up: n=tp"][..],
            "pin 'layers.*.mlp.up: n=tp' fits none of the model's",
            "nodes are called block.0.mlp.up, ",
        ),
        (
            &["block.*.mlp.up: z=0"],
            "pin 'block.*.mlp.up: z=0': 'block.0.mlp.up' has no axis 'z', expected one of b, s, ",
            "",
        ),
        (
            &["block.*.mlp.up: n=tensor", "*.up: k=tensor"],
            "pins 'block.*.mlp.up: n=tensor' and '*.up: k=tensor' contradict each other at 'block.0.mlp.up'",
            "one axis goes on one dimension",
        ),
        (
            &[
                "*.up: n=data",
                "*.up: n=tensor",
                "*.qkv: b=tensor",
                "*.norm: s=tensor",
                "block.*.attention.scores: -=data",
            ],
            "pin 'block.*.attention.scores: -=data' fits none",
            "nodes are called ",
        ),
    ] {
        let error = plan(pins).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
        assert!(!error.to_string().contains('\n') && error.hint().unwrap_or("").starts_with(hint));
    }
}

#[test]
fn what_no_mesh_allows_is_refused() {
    let error = plan(&["block.*.attention.norm: n=data"]).unwrap_err().to_string();
    assert!(error.contains("axis 'n'") || error.contains("no mesh of 8 devices"), "{error}");
}

#[test]
fn a_pin_binds_something_where_it_can() {
    for (pin, dim) in [("block.*.mlp.up: n=tensor", 1), ("block.*.mlp.up: b=data", 0)] {
        let (_, file) = plan(&[pin]).unwrap();
        assert!(file.mesh[dim] > 1, "{pin}: {:?}", file.mesh);
    }
}
