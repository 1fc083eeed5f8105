//! What a plan says that it sends is what its program sends.

use std::collections::BTreeMap;

use thinwire_model::{AttentionKind, Gpt, Graph, Operator, backward};
use thinwire_plan::cost::{Division, Sharding as Divided};
use thinwire_plan::output::{PlanFile, moved};
use thinwire_plan::search::{Candidate, Planner, Recompute, Rule, Settings};
use thinwire_plan::{Cluster, Error};
use thinwire_train::spmd::{Convert, Instruction, Owner, Plan, Program, program};
use thinwire_wire::{HEADER_BYTES, Rank};

fn cluster() -> Cluster {
    Cluster::parse(
        "[[device]]\nname = \"core\"\ntflops = 0.001\nmemory_gib = 4\nmemory_gbyte_per_s = 1\n\
         [[level]]\nname = \"node\"\nsize = 4\nlatency_us = 1\ngbit = 100\n",
    )
    .unwrap()
}

fn transfer(program: &Program, convert: &Convert) -> f64 {
    let transfer = program.transfer(convert);
    let sends = |leg: &thinwire_train::spmd::Leg| -> f64 {
        leg.schedule.tasks.iter().filter_map(|task| match task.operation {
            thinwire_schedule::Operation::Send { slot, .. } => Some(leg.schedule.slots[slot.index()]),
            _ => None,
        }).map(|n| leg.codec.encoded_len(n) as f64).sum()
    };
    transfer.legs.iter().map(sends).sum()
}

fn message(program: &Program, slot: usize, peer: Rank) -> f64 {
    let elements: usize = program.slots[slot].shape.iter().product();
    program.message_codec(slot, peer).encoded_len(elements) as f64
}

fn rows(program: &Program, graph: &Graph) -> BTreeMap<String, f64> {
    let mut rows = BTreeMap::new();
    let mut add = |slot: usize, what: &str, bytes: f64| {
        let name = format!("{} {what}", graph.tensors[program.slots[slot].tensor].name);
        *rows.entry(name).or_insert(0.0) += bytes;
    };
    let m = program.micro_batches as f64;
    for (what, list) in [("f", &program.forward), ("b", &program.backward), ("w", &program.weight)] {
        for one in list.iter().flatten() {
            match one {
                Instruction::Convert(c) => add(c.from, what, m * transfer(program, c)),
                Instruction::Send { slot, to, .. } => add(*slot, &format!("{what} message"), m * message(program, *slot, *to)),
                _ => {}
            }
        }
    }
    for p in &program.parameters {
        for c in &p.reduce { add(p.home, "reduce", transfer(program, c)); }
        for o in &p.others { for c in &o.converts { add(p.home, "others", transfer(program, c)); } }
        match &p.owner {
            Owner::There { rank, .. } => add(p.home, "to owner", message(program, p.reduced, *rank)),
            Owner::Here { restore, copies } => {
                for c in restore { add(p.home, "restore", transfer(program, c)); }
                for copy in copies {
                    for c in &copy.converts { add(p.home, "copy", transfer(program, c)); }
                    add(p.home, "copy message", message(program, copy.slot, copy.peer));
                }
            }
        }
    }
    rows.retain(|_, b| *b > 0.0);
    rows
}

#[test]
fn show() {
    let mut seen = 0;
    let named = ["gpt:layers=2,width=16,heads=4,vocabulary=64,positions=16", "llama:layers=2,width=16,heads=4,key_heads=4,feed_forward=32,vocabulary=64,positions=16",
       "moe:layers=2,width=16,heads=4,key_heads=4,feed_forward=8,positions=16,vocabulary=64,experts=4,chosen=2", "bert:layers=2,width=16,heads=4,vocabulary=64,positions=16"];
    for name in named {
    for (stages, mesh) in [(1, vec![4_usize]), (1, vec![2, 2]), (2, vec![2]), (4, vec![1])] {
        for rule in [Rule::Free, Rule::Data, Rule::Grid, Rule::PlainGrid] {
            for division in [Division::Alike(Divided::None), Division::Alike(Divided::Optimizer), Division::Alike(Divided::Gradients), Division::Alike(Divided::Parameters)] {
              for recompute in [Recompute::Never, Recompute::Always] {
                let settings = Settings { recompute, ..Settings::of_executor() };
                let mut planner = Planner::new(16, settings, move |b| thinwire_model::named(name, b, 16).map_err(|e| Error::from_model(&e)));
                let candidate = Candidate { stages, mesh: mesh.clone(), micro_batches: 2, division, rule };
                let Ok(found) = planner.plan_for(&cluster(), &candidate) else { continue };
                let file = PlanFile::new(name, 16, &planner, &cluster(), &found).unwrap();
                let graph = &planner.prepared(&candidate).unwrap().graph;
                let training = backward(graph).unwrap();
                let plan = Plan::of_file(&file, graph).unwrap();
                let moved = moved(&planner, &cluster(), &found).unwrap();
                let mut all = BTreeMap::new();
                let mut total = 0.0;
                for rank in 0..4 {
                    let program = program(&training, &plan, Rank(rank)).unwrap();
                    for (name, bytes) in rows(&program, &training.graph) {
                        *all.entry(name).or_insert(0.0) += bytes / 4.0;
                        total += bytes / 4.0;
                    }
                }
                let said = moved.sent_bytes;
                seen += 1;
                let equal = (said - total).abs() < 1e-6 * total.max(1.0);
                println!("{} {name} {stages} of {mesh:?} {rule:?} {division:?} {recompute:?} {}: said {said} true {total}", if equal { "=" } else { "#" }, found.best.schedule);
                if !equal && std::env::var_os("MORE").is_some() {
                    for (name, bytes) in all { println!("      {name} {bytes}"); }
                    for one in &moved.tensors { println!("      said {} {:?} x{} {}", one.name, one.kind, one.blocks, one.sent_bytes / stages as f64); }
                }
              }
            }
        }
    }
    }
    assert!(seen > 0);
    let _ = (HEADER_BYTES, AttentionKind::Fused, None::<Gpt>, None::<Operator>);
}
