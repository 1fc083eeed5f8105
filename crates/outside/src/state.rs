//! Law of the states of a synchroniser.

use std::sync::Mutex;

use thinwire_link::mem;
use thinwire_sync::{Feedback, Options, Parameter, State, Synchronizer, Tensors};

use crate::draw::Draw;

/// Byte that ends the plan, since no text has it.
const END: u8 = 0xff;
/// Largest number of elements of a tensor of a state.
const ELEMENTS_MAX: usize = 64;
const KINDS: [&str; 7] = ["residual", "shift", "mean", "momentum", "factor", "scale", "other"];

fn parameters() -> Vec<Parameter> {
    vec![
        Parameter::new("head.weight", &[4, 6]),
        Parameter::new("head.bias", &[4]),
        Parameter::new("input.weight", &[5, 3]),
    ]
}

/// Synchronisers of a single rank, for codecs with every kind of state; made once, since each has a
/// thread.
static RANKS: Mutex<Vec<Synchronizer>> = Mutex::new(Vec::new());

fn start(codec: &str, feedback: Feedback) -> Synchronizer {
    let policy = codec.parse().expect("a codec's own name parses");
    let options = Options { policy, feedback, ..Options::default() };
    let link = mem::mesh(1).pop().expect("a mesh of one rank has one link");
    Synchronizer::start(link, parameters(), options).expect("a rank alone agrees")
}

/// Checks that a rank either resumes from any plan and tensors, and then has a state that can be
/// loaded again, or refuses them.
pub fn state(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == END).unwrap_or(bytes.len());
    let plan = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let state = State { plan, tensors: tensors(Draw::new(&bytes[end..])) };
    let mut ranks = RANKS.lock().expect("no holder panics");
    if ranks.is_empty() {
        ranks.push(start("int8", Feedback::Classic));
        ranks.push(start("int8", Feedback::Ef21));
        ranks.push(start("powersgd:2", Feedback::Classic));
        ranks.push(start("intsgd", Feedback::Classic));
        ranks.push(start("auto", Feedback::Classic));
    }
    for rank in ranks.iter_mut() {
        if rank.load(&state).is_ok() {
            let again = rank.state();
            rank.load(&again).expect("its own state is one");
        }
    }
}

fn tensors(mut draw: Draw<'_>) -> Tensors {
    let (mut tensors, parameters) = (Tensors::new(), parameters());
    draw.u8();
    while !draw.is_over() {
        let (kind, parameter) = (usize::from(draw.u8()), usize::from(draw.u8()));
        let (rows, columns) = (usize::from(draw.u8() % 8), usize::from(draw.u8() % 8));
        let (elements, of) = (rows * columns, &parameters[parameter % parameters.len()]);
        let fits = draw.u8() & 1 == 0;
        let shape = if fits { of.shape.clone() } else { vec![rows, columns] };
        let count = if fits { of.elements() } else { elements };
        let values = (0..count.min(ELEMENTS_MAX)).map(|_| f32::from_le_bytes(draw.array()));
        let name = format!("{}.{}", KINDS[kind % KINDS.len()], of.name);
        tensors.insert(name, (shape, values.collect()));
    }
    tensors
}
