//! What the planner says that a plan sends is what its programs send, headers aside.

use thinwire_model::backward;
use thinwire_plan::cost::{Coding, Division, Sharding};
use thinwire_plan::pipeline::Schedule;
use thinwire_plan::report::{LevelTraffic, plan_file, traffic};
use thinwire_plan::search::{Candidate, Planner, Recompute, Rule, Settings};
use thinwire_plan::{Cluster, Error};
use thinwire_program::{
    Convert, Instruction, Message, Owner, Phase, Plan, Program, Slot, StepBytes, program,
};
use thinwire_schedule::Operation;
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

/// Bytes that a rank sends in a step, without headers, message by message.
fn sent(program: &Program) -> u64 {
    let collective = |convert: &Convert| {
        let phases = program.transfer(convert).phases;
        phases.iter().map(of_phase).sum::<usize>()
    };
    let all = |converts: &[Convert]| converts.iter().map(collective).sum::<usize>();
    let message = |slot: Slot, peer: Rank| {
        let elements = program.slots[slot].shape.iter().product();
        program.message_codec(slot, peer).encoded_len(elements)
    };
    let passes = program.forward.iter().chain(&program.backward).chain(&program.weight).flatten();
    let micro_batch = passes.map(|instruction| match instruction {
        Instruction::Convert(convert) => collective(convert),
        Instruction::Send { slot, to, .. } => message(*slot, *to),
        _ => 0,
    });
    let mut sum = program.micro_batches * micro_batch.sum::<usize>();
    for parameter in &program.parameters {
        sum += all(&parameter.reduce);
        sum += parameter.others.iter().map(|other| all(&other.converts)).sum::<usize>();
        sum += match &parameter.owner {
            Owner::There { rank, .. } => message(parameter.reduced, *rank),
            Owner::Here { restore, copies } => {
                let copy = |copy: &Message| all(&copy.converts) + message(copy.slot, copy.peer);
                all(restore) + copies.iter().map(copy).sum::<usize>()
            }
        };
    }
    sum as u64
}

fn of_phase(phase: &Phase) -> usize {
    let lengths = phase.schedule.bytes(&|elements| phase.codec.encoded_len(elements));
    let sends = phase.schedule.tasks.iter().filter_map(|task| match task.operation {
        Operation::Send { slot, .. } => Some(lengths[slot.index()]),
        _ => None,
    });
    sends.sum()
}

/// Whether there is such a plan, for which all that is said of bytes is what its programs send.
fn check(name: &'static str, settings: Settings, candidate: &Candidate) -> bool {
    let what = format!("{name}, {candidate:?}, {:?}, {:?}", settings.recompute, settings.schedule);
    let mut planner = Planner::new(16, settings, move |batch| {
        thinwire_model::named(name, batch, 16).map_err(|error| Error::from_model(&error))
    });
    let Ok(found) = planner.plan_for(&cluster(), candidate) else { return false };
    let file = plan_file(name, 16, &planner, &cluster(), &found).unwrap();
    let graph = &planner.prepared(&found.best.candidate).unwrap().graph;
    let (training, plan) = (backward(graph).unwrap(), Plan::of_file(&file, graph).unwrap());
    let programs = (0..plan.ranks() as u32).map(|rank| program(&training, &plan, Rank(rank)));
    let programs: Vec<Program> = programs.map(Result::unwrap).collect();
    let bytes = StepBytes::of(&training, &plan, 4).unwrap();
    let counted: u64 = programs.iter().map(sent).sum();
    let said: u64 = bytes.exchanges.iter().map(|one| bytes.bytes(one)).sum();
    assert_eq!(said, counted, "{what}");
    let with_headers: u64 = programs.iter().map(Program::sent_bytes).sum();
    assert_eq!(bytes.total_with_headers(), with_headers, "{what}");
    let traffic = traffic(&planner, &cluster(), &found).unwrap();
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.max(1.0);
    let devices = plan.ranks() as f64;
    assert!(close(traffic.sent_bytes * devices, counted as f64), "{what}: {}", traffic.sent_bytes);
    let of = |one: &LevelTraffic| one.collective_bytes + one.parameter_bytes + one.message_bytes;
    let busiest: f64 = traffic.levels.iter().map(of).sum();
    assert!(busiest >= traffic.sent_bytes * (1.0 - 1e-9), "{what}: the busiest sends {busiest}");
    true
}

const RULES: [Rule; 4] = [Rule::Free, Rule::Data, Rule::Grid, Rule::PlainGrid];

/// Every candidate of two micro-batches.
fn candidates() -> impl Iterator<Item = Candidate> {
    let rules = RULES.into_iter().flat_map(|rule| SHARDINGS.map(|sharding| (rule, sharding)));
    let all = MESHES.into_iter().flat_map(move |mesh| rules.clone().map(move |rest| (mesh, rest)));
    all.map(|((stages, mesh), (rule, sharding))| {
        let (mesh, division) = (mesh.to_vec(), Division::Alike(sharding));
        Candidate { stages, mesh, micro_batches: 2 * stages, division, rule }
    })
}

#[test]
fn what_is_said_is_what_is_sent() {
    let mut count = 0;
    for (name, candidate) in
        MODELS.into_iter().flat_map(|name| candidates().map(move |candidate| (name, candidate)))
    {
        for recompute in [Recompute::Never, Recompute::Always] {
            let settings = Settings { recompute, ..Settings::of_executor() };
            count += usize::from(check(name, settings, &candidate));
        }
    }
    assert!(count > 300, "{count} plans");
}

#[test]
fn every_schedule_sends_what_is_said() {
    let schedules = [
        Schedule::Gpipe,
        Schedule::OneForwardOneBackward,
        Schedule::Interleaved { chunks: 2 },
        Schedule::ZeroBubble,
    ];
    let mut count = 0;
    for candidate in candidates().filter(|one| one.stages == 2 && one.rule != Rule::Data) {
        for schedule in schedules.map(Some) {
            let settings = Settings { schedule, ..Settings::of_executor() };
            count += usize::from(check(MODELS[0], settings, &candidate));
        }
    }
    assert!(count > 50, "{count} plans");
}

#[test]
fn tensors_that_are_encoded_are_said_so() {
    for candidate in candidates().filter(|one| one.rule == Rule::Data) {
        for recompute in [Recompute::Never, Recompute::Always] {
            let codings = vec![Coding::parse("int8").unwrap()];
            let activation_codings = vec![Coding::of_activations("int8").unwrap()];
            let settings =
                Settings { codings, activation_codings, recompute, ..Settings::of_executor() };
            check(WIDE, settings, &candidate);
        }
    }
}
