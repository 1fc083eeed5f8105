//! Golden values: losses and parameters of five steps under every kind of plan, bit for bit.
//!
//! They are recorded in `testdata/plans.txt`; `THINWIRE_GOLDEN=update` records them anew. Products
//! are summed in an order that depends on the CPU's caches and vectors, and functions are rounded as
//! the C library does on this CPU. The first line there is the hash of some of both: where that is
//! another one, nothing can be compared.

use std::fmt::Write;
use std::path::Path;

use thinwire_model::{Linear, Operator, Region};
use thinwire_program::pipeline::Schedule;
use thinwire_program::{Plan, Sharding};
use thinwire_train::spmd::{Value, kernel};

use crate::codecs::transport;
use crate::laws::{GPT, MOE, Model, VGG};
use crate::plans::{data, on_mesh, operator_letter, pipelined, sequence_letter};
use crate::ranks::train;

const STEPS: usize = 5;

fn sharded(plan: Plan, sharding: Sharding) -> Plan {
    Plan { sharding: vec![sharding; plan.sharding.len()], ..plan }
}

fn encoded(plan: Plan, codec: &str, within: usize) -> Plan {
    Plan { codecs: vec![transport(codec, within); plan.codecs.len()], ..plan }
}

fn recomputed(mut plan: Plan) -> Plan {
    plan.blocks.iter_mut().for_each(|block| block.recompute = true);
    plan
}

fn activations(plan: Plan, codec: &str) -> Plan {
    Plan { activations: vec![transport(codec, 1)], ..plan }
}

/// Every kind of plan, by name.
fn cases() -> Vec<(String, &'static Model, Plan)> {
    let gpt = &GPT.graph;
    let mut cases: Vec<(String, &Model, Plan)> = Vec::new();
    let mut add = |name: &str, model: &'static Model, plan| {
        cases.push((name.to_owned(), model, plan));
    };
    for size in [1, 2, 4] {
        add(&format!("data {size}"), &GPT, data(gpt, &[size]));
    }
    add("data 2x2", &GPT, data(gpt, &[2, 2]));
    add("images, data 2", &VGG, data(&VGG.graph, &[2]));
    let operators = |name: &str, _| operator_letter(name);
    add("operators 2", &GPT, on_mesh(gpt, &[2], operators));
    add("operators of images 2", &VGG, on_mesh(&VGG.graph, &[2], operators));
    add("sequence 2", &GPT, on_mesh(gpt, &[2], |name, _| sequence_letter(name)));
    let both = |name: &str, dim| if dim == 0 { 'b' } else { sequence_letter(name) };
    add("data 2, sequence 2", &GPT, on_mesh(gpt, &[2, 2], both));
    add("experts 2", &MOE, on_mesh(&MOE.graph, &[2], |_, _| 'e'));
    let shardings =
        [Sharding::None, Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters];
    for sharding in shardings {
        let plan = sharded(pipelined(data(gpt, &[4]), Schedule::Gpipe, (1, 1, 2)), sharding);
        add(&format!("{sharding:?}"), &GPT, plan.clone());
        for (codec, within) in [("int8", 1), ("int8", 2), ("topk:0.1", 1), ("onebit", 2)] {
            let name = format!("{sharding:?}, {codec} within {within}");
            add(&name, &GPT, encoded(plan.clone(), codec, within));
        }
    }
    for (name, order) in [
        ("gpipe", Schedule::Gpipe),
        ("1f1b", Schedule::OneForwardOneBackward),
        ("zero-bubble", Schedule::ZeroBubble),
    ] {
        let plan = pipelined(Plan::alone(gpt), order, (2, 2, 4));
        add(&format!("{name} 2"), &GPT, plan.clone());
        add(&format!("{name} 2, recomputed"), &GPT, recomputed(plan));
    }
    let plan = pipelined(data(gpt, &[2]), Schedule::OneForwardOneBackward, (2, 4, 4));
    add("interleaved 2, data 2", &GPT, plan.clone());
    add("interleaved 2, data 2, int4", &GPT, encoded(plan.clone(), "int4", 1));
    add("interleaved 2, data 2, activations int8", &GPT, activations(plan, "int8"));
    cases
}

/// Shapes `[m, k, n]` of products: of the models above, of single rows, and of long sums.
const PRODUCTS: [[usize; 3]; 7] =
    [[7, 16, 32], [8, 8, 8], [1, 32, 64], [32, 1, 16], [16, 64, 128], [64, 96, 33], [96, 700, 65]];

/// Hash of what this machine may round otherwise than another one.
fn arithmetic() -> u32 {
    let value = |at: usize| ((at * 7919) % 2003) as f32 / 2003.0 - 0.5;
    let functions = (0..2003).map(|at| 8.0 * value(at));
    let mut made: Vec<f32> = functions.flat_map(|x| [x.exp(), x.tanh(), x.abs().ln()]).collect();
    for (turned, [m, k, n]) in [false, true].into_iter().flat_map(|it| PRODUCTS.map(|of| (it, of)))
    {
        let operator = Operator::from(Linear { turned, ..Linear::plain() });
        let weight = if turned { [n, k] } else { [k, n] };
        let of =
            |shape: &[usize]| Value::new(shape, (0..shape.iter().product()).map(value).collect());
        let declaration = operator.declare(&[&[1, m, k], &weight]).unwrap();
        let inputs = vec![of(&[1, m, k]), of(&weight)];
        let products = kernel::compute(&operator, inputs, &Region::whole(&declaration));
        made.extend(products[0].floats());
    }
    let bytes: Vec<u8> = made.iter().flat_map(|value| value.to_le_bytes()).collect();
    thinwire_wire::checksum(&bytes)
}

#[test]
fn every_plan_trains_as_it_did() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/plans.txt");
    let mut found = format!("arithmetic {:08x}\n", arithmetic());
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    let update = std::env::var_os("THINWIRE_GOLDEN").is_some_and(|value| value == "update");
    if !update && recorded.lines().next() != found.lines().next() {
        eprintln!(
            "skipped: this machine rounds otherwise than the one that {path:?} was recorded on"
        );
        return;
    }
    for (name, model, plan) in cases() {
        let outcome = train(&model.training, &plan, STEPS);
        let parameters = outcome.parameters.iter().flat_map(|array| array.values());
        let values = outcome.losses.iter().copied().chain(parameters.map(|value| *value as f32));
        let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
        writeln!(found, "{name}: {:08x}", thinwire_wire::checksum(&bytes)).unwrap();
    }
    if update {
        std::fs::write(&path, found).unwrap();
        return;
    }
    for (found, recorded) in found.lines().zip(recorded.lines()) {
        assert_eq!(found, recorded, "THINWIRE_GOLDEN=update records other values");
    }
    assert_eq!(found.lines().count(), recorded.lines().count());
}
