//! What waits for backward in published models, beside what is published: `activations`.
//!
//! Of every model and way to keep, bytes of a device: for a layer and one micro-batch, and for the
//! first stage. "Ours" is what our executor would keep, "as Megatron" the same graph and cuts where
//! masks, logits and gathered sequences are kept as that program does.

#[path = "../tests/published/mod.rs"]
mod published;

use published::{Keeping, Kept, MODELS, WAYS};

const MIB: f64 = (1_u64 << 20) as f64;
const GIB: f64 = (1_u64 << 30) as f64;

fn main() {
    println!("{:31} {:^43} {:^42}", "", "a layer, MiB", "the first stage, GiB");
    let columns = ["ours", "as Megatron", "published", "ratio"];
    let [a, b, c, d] = columns;
    println!("{:31} {a:>9} {b:>11} {c:>10} {d:>8}    {a:>9} {b:>11} {c:>10} {d:>8}", "");
    for model in MODELS {
        for (way, keep, sequences) in WAYS {
            let theirs = model.formula(keep, sequences);
            let alike = model.ours(keep, sequences, Keeping::MEGATRON);
            let ours = model.ours(keep, sequences, Keeping::OURS);
            let row = |of: fn(&Kept) -> f64, unit: f64| {
                let [ours, alike, theirs] = [&ours, &alike, &theirs].map(of).map(|n| n / unit);
                format!("{ours:9.1} {alike:11.1} {theirs:10.1} {:8.3}", alike / theirs)
            };
            let layer = row(|kept| kept.layer, MIB);
            println!("{:4} {way:26} {layer}    {}", model.name, row(|kept| kept.stage, GIB));
        }
    }
}
