//! What the planner says that a plan sends is what its programs send, headers aside.

use thinwire_model::backward;
use thinwire_plan::cost::{Coding, Division, Sharding};
use thinwire_plan::output::{PlanFile, Traffic, moved, traffic};
use thinwire_plan::search::{Candidate, Found, Planner, Recompute, Rule, Settings};
use thinwire_plan::{Cluster, Error};
use thinwire_schedule::Operation;
use thinwire_train::spmd::{Convert, Instruction, Leg, Owner, Plan, Program, Slot, program};
use thinwire_wire::Rank;

const MODELS: [&str; 4] = [
    "gpt:layers=2,width=16,heads=4,vocabulary=64,positions=16",
    "llama:layers=2,width=16,heads=4,key_heads=4,feed_forward=32,vocabulary=64,positions=16",
    "moe:layers=2,width=16,heads=4,key_heads=4,feed_forward=8,positions=16,vocabulary=64,experts=4,chosen=2",
    "bert:layers=2,width=16,heads=4,vocabulary=64,positions=16",
];

/// A model whose parameters every rank's part of has whole blocks of a codec.
const WIDE: &str = "gpt:layers=2,width=64,heads=4,vocabulary=256,positions=16";

const MESHES: [(usize, &[usize]); 5] =
    [(1, &[4]), (1, &[2, 2]), (2, &[2]), (2, &[1, 2]), (4, &[1])];

const SHARDINGS: [Sharding; 4] =
    [Sharding::None, Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters];

fn cluster() -> Cluster {
    let text = "[[device]]\nname = \"core\"\ntflops = 0.001\nmemory_gib = 4\nmemory_gbyte_per_s = 1\n\
                [[level]]\nname = \"node\"\nsize = 4\nlatency_us = 1\ngbit = 0.1\n";
    Cluster::parse(text).unwrap()
}

fn of_collective(program: &Program, convert: &Convert) -> usize {
    let of_leg = |leg: &Leg| -> usize {
        let sends = leg.schedule.tasks.iter().filter_map(|task| match task.operation {
            Operation::Send { slot, .. } => Some(leg.schedule.slots[slot.index()]),
            _ => None,
        });
        sends.map(|elements| leg.codec.encoded_len(elements)).sum()
    };
    program.transfer(convert).legs.iter().map(of_leg).sum()
}

fn of_message(program: &Program, slot: Slot, peer: Rank) -> usize {
    let elements = program.slots[slot].shape.iter().product();
    program.message_codec(slot, peer).encoded_len(elements)
}

/// Bytes that a rank sends in a step, without headers.
fn sent(program: &Program) -> usize {
    let all = |converts: &[Convert]| -> usize {
        converts.iter().map(|convert| of_collective(program, convert)).sum()
    };
    let turns = program.forward.iter().chain(&program.backward).chain(&program.weight).flatten();
    let micro_batch = turns.map(|instruction| match instruction {
        Instruction::Convert(convert) => of_collective(program, convert),
        Instruction::Send { slot, to, .. } => of_message(program, *slot, *to),
        _ => 0,
    });
    let mut sum = program.micro_batches * micro_batch.sum::<usize>();
    for parameter in &program.parameters {
        sum += all(&parameter.reduce);
        sum += parameter.others.iter().map(|other| all(&other.converts)).sum::<usize>();
        sum += match &parameter.owner {
            Owner::There { rank, .. } => of_message(program, parameter.reduced, *rank),
            Owner::Here { restore, copies } => {
                let copies = copies
                    .iter()
                    .map(|copy| all(&copy.converts) + of_message(program, copy.slot, copy.peer));
                all(restore) + copies.sum::<usize>()
            }
        };
    }
    sum
}

fn check(name: &'static str, settings: Settings, candidate: &Candidate) -> bool {
    let what = format!("{name}, {candidate:?}, {:?}", settings.recompute);
    let mut planner = Planner::new(16, settings, move |batch| {
        thinwire_model::named(name, batch, 16).map_err(|error| Error::from_model(&error))
    });
    let Ok(found) = planner.plan_for(&cluster(), candidate) else { return false };
    let counted = counted(name, &planner, &found);
    let moved = moved(&planner, &cluster(), &found).unwrap();
    let said = moved.sent_bytes * 4.0;
    assert!((said - counted as f64).abs() <= 1e-6 * said, "{what}: {said}, counted {counted}");
    let rows: f64 = moved.tensors.iter().map(|one| one.sent_bytes).sum();
    assert!((rows - moved.sent_bytes).abs() <= 1e-6 * said, "{what}: rows of {rows}");
    let of = |one: &Traffic| one.collective_bytes + one.parameter_bytes + one.message_bytes;
    let busiest: f64 = traffic(&planner, &cluster(), &found).unwrap().iter().map(of).sum();
    assert!(busiest >= moved.sent_bytes * (1.0 - 1e-9), "{what}: the busiest sends {busiest}");
    true
}

/// Bytes of all ranks.
fn counted(name: &str, planner: &Planner, found: &Found) -> usize {
    let file = PlanFile::new(name, 16, planner, &cluster(), found).unwrap();
    let graph = &planner.prepared(&found.best.candidate).unwrap().graph;
    let (training, plan) = (backward(graph).unwrap(), Plan::of_file(&file, graph).unwrap());
    let ranks = (0..plan.ranks() as u32).map(Rank);
    ranks.map(|rank| sent(&program(&training, &plan, rank).unwrap())).sum()
}

#[test]
fn what_is_said_is_what_is_sent() {
    let mut count = 0;
    for (name, (stages, mesh)) in
        MODELS.into_iter().flat_map(|name| MESHES.map(|mesh| (name, mesh)))
    {
        for (rule, sharding) in [Rule::Free, Rule::Data]
            .into_iter()
            .flat_map(|rule| SHARDINGS.map(|sharding| (rule, sharding)))
        {
            let settings = Settings { recompute: Recompute::Never, ..Settings::of_executor() };
            let (mesh, division) = (mesh.to_vec(), Division::Alike(sharding));
            let candidate = Candidate { stages, mesh, micro_batches: 2, division, rule };
            count += usize::from(check(name, settings, &candidate));
        }
    }
    assert!(count > 100, "{count} plans");
}

#[test]
fn gradients_that_are_encoded_are_said_so() {
    for (stages, mesh) in MESHES {
        for sharding in SHARDINGS {
            let codings = vec![Coding::parse("int8").unwrap()];
            let recompute = Recompute::Never;
            let settings = Settings { codings, recompute, ..Settings::of_executor() };
            let (mesh, division) = (mesh.to_vec(), Division::Alike(sharding));
            let candidate =
                Candidate { stages, mesh, micro_batches: 2, division, rule: Rule::Data };
            assert!(check(WIDE, settings, &candidate));
        }
    }
}
