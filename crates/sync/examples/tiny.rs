//! Measures the cost of thousands of tiny tensors beyond their bytes.
//!
//! `cargo run --release -p thinwire-sync --example tiny -- [TENSORS] [ELEMENTS] [CODEC]`
//!
//! Two ranks in one process average TENSORS tensors, given one by one and then as one bucket of a
//! framework. Each prints a line: the median of a step, on the slower rank, and of its parts.

use std::ops::Range;
use std::time::Instant;

use thinwire_sync::{ExternalBuffer, Options, Parameter, Synchronizer};
use thinwire_testkit::{Network, spawn};

const STEPS: usize = 60;
const WARM_UP: usize = 10;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let tensors = arguments.next().map_or(3000, |text| text.parse().expect("a number of tensors"));
    let elements = arguments.next().map_or(64, |text| text.parse().expect("a number of elements"));
    let codec = arguments.next().unwrap_or_else(|| "none".to_owned());
    println!("{tensors} tensors of {elements} elements, {codec}; milliseconds");
    for network in [Network::Mem, Network::Tcp] {
        for lends in [false, true] {
            let ranks = spawn(network, 2, |link| {
                let shape = [elements];
                let parameter = |index| Parameter::new(&format!("p{index}"), &shape);
                let parameters: Vec<Parameter> = (0..tensors).map(parameter).collect();
                let policy = codec.parse().expect("a codec's name");
                let options = Options { policy, ..Options::default() };
                let sync = Synchronizer::start(link, parameters, options).expect("a group");
                measure(sync, &vec![0.5; tensors * elements], elements, lends)
            });
            let slower = |part: usize| ranks.iter().map(|parts| parts[part]).fold(0.0, f64::max);
            println!(
                "{network:?}, {}: step {:.3}, begin {:.3}, give {:.3}, finish {:.3}, read {:.3}",
                if lends { "one bucket" } else { "one by one" },
                slower(4),
                slower(0),
                slower(1),
                slower(2),
                slower(3),
            );
        }
    }
}

/// Milliseconds of begin, giving, finish, reading and all of a step, each a median.
fn measure(mut sync: Synchronizer, values: &[f32], elements: usize, lends: bool) -> [f64; 5] {
    let mut steps: Vec<[f64; 5]> = Vec::new();
    for step in 0..STEPS {
        let begun = Instant::now();
        sync.begin(step as u64).expect("a higher step");
        let mut marks = vec![begun.elapsed()];
        if lends {
            sync.ready_bucket(0, |range: Range<usize>| Loan(values[range].to_vec()))
                .expect("gradients");
        } else {
            for (index, gradient) in values.chunks_exact(elements).enumerate() {
                sync.ready(index, gradient).expect("a gradient");
            }
        }
        marks.push(begun.elapsed());
        let _ = sync.finish().expect("a step");
        marks.push(begun.elapsed());
        let sum: f32 = (0..sync.parameters().len()).map(|index| sync.gradient(index)[0]).sum();
        assert!(sum.is_finite());
        marks.push(begun.elapsed());
        let ms: Vec<f64> = marks.iter().map(|mark| mark.as_secs_f64() * 1e3).collect();
        steps.push([ms[0], ms[1] - ms[0], ms[2] - ms[1], ms[3] - ms[2], ms[3]]);
    }
    let median = |part: usize| {
        let mut values: Vec<f64> = steps[WARM_UP..].iter().map(|step| step[part]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    std::array::from_fn(median)
}

/// A copy of gradients, as a framework would lend its own.
struct Loan(Vec<f32>);

impl ExternalBuffer for Loan {
    fn values(&self) -> &[f32] {
        &self.0
    }

    fn values_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }
}
