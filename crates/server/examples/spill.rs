//! Memory of a large table, and speed of a table with a quarter of its memory as limit.
//!
//! First all rows are written once under `sgd`, and resident memory is compared with the bytes of the values.
//! Then the table is trained by pulls and pushes of Zipf ids, without a limit and with a limit of a quarter
//! of its bytes, and the values are compared bit by bit. Rows per second count pulls and pushes together,
//! without a network.
//!
//! `cargo run --release -p thinwire-server --example spill -- FOLDER [ROWS]`

use std::path::PathBuf;
use std::time::Instant;

use thinwire_member::Id;
use thinwire_server::{
    Format, Initial, MemoryLimit, Part, Piece, Pull, TableOptions, Tables, Write,
};
use thinwire_update::Optimizer;
use thinwire_wire::random::Key;

const ROWS: u64 = 10_000_000;
const WIDTH: usize = 16;
const BATCH: u64 = 20_000;
const STEPS: u64 = 500;

fn main() -> Result<(), thinwire_server::Error> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().expect("a folder for rows beyond the memory"));
    let rows = arguments.next().map_or(ROWS, |rows| rows.parse().expect("a number of rows"));
    let raw = rows * WIDTH as u64 * 4;
    let before = resident();
    let mut tables = written(rows, None)?;
    let (told, resident_bytes) = (tables.bytes(), resident() - before);
    println!("{rows} rows x {WIDTH} f32 = {} MB, all written under sgd", raw / 1_000_000);
    println!("  resident {:.3} x, told {:.3} x", ratio(resident_bytes, raw), ratio(told, raw));
    let expected = train("in memory", rows, &mut tables)?;
    drop(tables);
    let before = resident();
    let bytes_max = told / 4;
    let mut tables = written(rows, Some(MemoryLimit { bytes_max, folder }))?;
    println!(
        "  limit {} MB, {} MB on disk",
        bytes_max / 1_000_000,
        tables.spilled_bytes() / 1_000_000
    );
    let found = train("a quarter in memory", rows, &mut tables)?;
    let (told, resident_bytes) = (tables.bytes(), resident().saturating_sub(before));
    println!(
        "  resident {:.3} x of the limit, told {:.3} x",
        ratio(resident_bytes, bytes_max),
        ratio(told, bytes_max)
    );
    assert!(expected == found, "a limit of memory changes no bit");
    Ok(())
}

/// Returns a table with every row written once.
fn written(rows: u64, limit: Option<MemoryLimit>) -> Result<Tables, thinwire_server::Error> {
    let optimizer = Optimizer::parse("sgd:lr=0.01").expect("a rule");
    let initial = Initial::Uniform(0.05);
    let options =
        TableOptions { width: WIDTH, optimizer, initial, seed: 1, stream: 0, values: Format::F32 };
    let mut tables = Tables::new(&[Piece { table: 0, rows: 0..rows }], &[options]);
    limit.iter().try_for_each(|limit| tables.limit(limit))?;
    for start in (0..rows).step_by(BATCH as usize) {
        tables.apply(&update((start..rows.min(start + BATCH)).collect()))?;
    }
    Ok(tables)
}

fn update(rows: Vec<u64>) -> Write {
    let gradient = vec![0.125; rows.len() * WIDTH].into();
    Write::Update { pushes: Vec::new(), parts: vec![Part { table: 0, rows, gradient }] }
}

/// Pulls and pushes rows of Zipf ids. Returns a hash of all pulled values.
fn train(name: &str, rows: u64, tables: &mut Tables) -> Result<u64, thinwire_server::Error> {
    let (begun, mut count, mut hash) = (Instant::now(), 0, 0_u64);
    for step in 0..STEPS {
        let batch = zipf(step, rows);
        count += batch.len();
        let pull = Pull { client: Id(1), request: step, after: 0, rows: vec![(0, batch)] };
        for value in tables.read(&pull)? {
            hash = (hash.rotate_left(5) ^ u64::from(value.to_bits()))
                .wrapping_mul(0x517c_c1b7_2722_0a95);
        }
        let (_, batch) = { pull.rows }.remove(0);
        tables.apply(&update(batch))?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let millions = count as f64 / 1e6;
    println!("  {name}: {STEPS} steps of {BATCH} Zipf ids, {:.2} M rows/s", millions / seconds);
    Ok(hash)
}

/// Returns the unique rows of a batch of Zipf ids: the frequency of an id is 1 over its rank, and ranks are
/// spread over the table.
fn zipf(step: u64, rows: u64) -> Vec<u64> {
    let key = Key { seed: 2, step, tensor: 0 };
    let id = |at| {
        let uniform = (f64::from(key.word(at)) + 0.5) / 4_294_967_296.0;
        let rank = ((rows as f64).powf(uniform) as u64).min(rows - 1);
        rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % rows
    };
    let mut batch: Vec<u64> = (0..BATCH).map(id).collect();
    batch.sort_unstable();
    batch.dedup();
    batch
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = status.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    4096 * pages.expect("a number of pages")
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
