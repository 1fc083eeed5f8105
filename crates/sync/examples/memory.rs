//! Measures the memory of the sync layer beyond one copy of the gradients.
//!
//! `cargo run --release -p thinwire-sync --example memory -- [CODEC …]`
//!
//! Two ranks in one process exchange 128 MiB of gradients each; the process's peak resident memory,
//! less what it had before, is divided among them. The bars: at most 2 with error feedback, 1
//! without.

use thinwire_link::mem;
use thinwire_sync::{Options, Parameter, Synchronizer};

const RANKS: u32 = 2;
const MATRICES: usize = 32;
const ELEMENTS: usize = 1 << 20;

fn main() {
    let codecs: Vec<String> = std::env::args().skip(1).collect();
    if codecs.len() == 1 {
        return measure(&codecs[0]);
    }
    let all = ["none", "f16", "int8:stochastic", "int8", "int4", "topk:0.01", "powersgd:4"];
    let codecs = if codecs.is_empty() { all.map(str::to_owned).to_vec() } else { codecs };
    let program = std::env::current_exe().expect("a running program has a path");
    for codec in codecs {
        let status = std::process::Command::new(&program).arg(&codec).status();
        assert!(status.is_ok_and(|status| status.success()), "{codec} failed");
    }
}

fn measure(codec: &str) {
    let before = resident("VmRSS");
    std::thread::scope(|scope| {
        for link in mem::mesh(RANKS) {
            scope.spawn(move || {
                let parameters = (0..MATRICES)
                    .map(|i| Parameter::new(&format!("p{i}"), &[1024, ELEMENTS / 1024]));
                let policy = codec.parse().expect("a codec's name");
                let options = Options { policy, ..Options::default() };
                let mut sync =
                    Synchronizer::start(link, parameters.collect(), options).expect("a group");
                let gradient: Vec<f32> = (0..ELEMENTS).map(|i| (i % 977) as f32 - 488.0).collect();
                for step in 0..3 {
                    sync.begin(step).expect("a step");
                    for parameter in 0..MATRICES {
                        sync.ready(parameter, &gradient).expect("a gradient");
                    }
                    let _ = sync.finish().expect("a step");
                }
            });
        }
    });
    let gradients = (MATRICES * ELEMENTS * 4) as f64;
    let peak = (resident("VmHWM") - before) / f64::from(RANKS) - (ELEMENTS * 4) as f64;
    println!("{codec:16} {:.2} x the gradients beyond the gradients", peak / gradients - 1.0);
}

/// A figure of this process in bytes.
fn resident(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells about processes");
    let line = status.lines().find(|line| line.starts_with(name)).expect("a known figure");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).expect("a number of KiB")
        * 1024.0
}
