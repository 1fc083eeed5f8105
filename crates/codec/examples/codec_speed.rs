//! Codec speeds beside those of a plain copy: `cargo run --release -p thinwire-codec --example codec_speed`.
//!
//! Arguments: MiB of f32 (64), rounds (15), codecs (all).

use thinwire_codec::{Choice, all, speed};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mib: usize = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(15), |text| text.parse())?;
    let mut choices = arguments.map(|name| Choice::parse(&name)).collect::<Result<Vec<_>, _>>()?;
    if choices.is_empty() {
        choices = all();
    }
    println!("{mib} MiB of f32, median of {rounds}, kernels: {}", speed::kernels());
    println!("{:<16} {:<22} {:>8} {:>8}", "codec", "operation", "GB/s", "x copy");
    for choice in choices {
        for row in speed::measure(&choice, mib << 18, rounds) {
            let (name, gigabytes) = (choice.to_string(), row.bytes_per_s / 1e9);
            println!(
                "{name:<16} {:<22} {gigabytes:>8.2} {:>8.2}",
                row.operation, row.relative_to_copy
            );
        }
    }
    Ok(())
}
