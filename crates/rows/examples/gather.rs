//! Speed of a cache, compared in one run with a plain copy of random rows from one Vec.
//!
//! Gather: batches of uniform ids, all of them hits, rows of 128 f32, in GB/s of answers. Lookups: batches
//! of Zipf ids at a tenth of the rows cached, rows of 16 f32, in ids per second, with misses copied from a
//! table in memory; hits are compared with the bounds. De-duplication: ids per second, compared with a sort
//! of pairs. Medians of several rounds, with the least and the most. Seconds are processor time of one
//! thread.
//!
//! `cargo run --release -p thinwire-rows --example gather`

use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};
use thinwire_rows::{
    Cache, Foreseen, Frozen, Lookup, Lru, Policy, SLOT_BYTES, Sieve, Start, Trace, Unique, belady,
    by_frequency,
};
use thinwire_wire::random::Key;

const ROUNDS: usize = 9;
const BATCH: usize = 20_000;
const BATCHES: u32 = 10;
const GATHER_ROWS: u32 = 400_000;
const GATHER_WIDTH: usize = 128 * 4;
const ZIPF_ROWS: u32 = 1_000_000;
const ZIPF_WIDTH: usize = 16 * 4;
const ZIPF_BATCHES: u32 = 100;
const ZIPF_SLOTS: u32 = ZIPF_ROWS / 10;

fn main() -> Result<(), thinwire_rows::Error> {
    gather()?;
    lookups()?;
    deduplication();
    Ok(())
}

fn gather() -> Result<(), thinwire_rows::Error> {
    println!("gather: {GATHER_ROWS} rows of {GATHER_WIDTH} bytes, batches of {BATCH} uniform ids");
    let table = table(GATHER_ROWS, GATHER_WIDTH);
    let source = Frozen::in_memory(table.clone(), GATHER_WIDTH)?;
    let batches = uniform(GATHER_ROWS);
    let (mut lookup, mut out) = (Lookup::new(), vec![0; BATCH * GATHER_WIDTH]);
    let mut whole = vec![0; table.len()];
    let mut caches = policies(GATHER_ROWS, GATHER_WIDTH);
    let all: Vec<u64> = (0..u64::from(GATHER_ROWS)).collect();
    for (name, cache) in &mut caches {
        cache.read(&source, &all, &mut lookup, &mut whole)?;
        let (mut plain, mut cached) = (Vec::new(), Vec::new());
        // The first round finds caches of the processor cold.
        for _ in 0..=ROUNDS {
            plain.push(timed(|| {
                for ids in &batches {
                    copy(&table, ids, &mut out);
                    black_box(&mut out);
                }
            }));
            cached.push(timed(|| {
                for ids in &batches {
                    cache.begin(ids, 0, &mut lookup, &mut out).expect("lengths fit");
                    assert!(lookup.missing().is_empty(), "all are hits");
                    black_box(&mut out);
                }
            }));
        }
        let gigabytes = (batches.len() * BATCH * GATHER_WIDTH) as f64 / 1e9;
        let ratios = plain.iter().zip(&cached).skip(1).map(|(plain, cached)| plain / cached);
        let speeds = |times: &[f64]| spread(times[1..].iter().map(|time| gigabytes / time));
        println!(
            "  {name:<10} {} GB/s, plain {} GB/s, ratio {}",
            speeds(&cached),
            speeds(&plain),
            spread(ratios)
        );
    }
    Ok(())
}

fn lookups() -> Result<(), thinwire_rows::Error> {
    println!(
        "lookups: {ZIPF_ROWS} rows of {ZIPF_WIDTH} bytes, {ZIPF_SLOTS} slots, {BATCH} Zipf ids a batch"
    );
    let source = Frozen::in_memory(table(ZIPF_ROWS, ZIPF_WIDTH), ZIPF_WIDTH)?;
    let (batches, trace) = zipf();
    let (mut lookup, mut out) = (Lookup::new(), vec![0; BATCH * ZIPF_WIDTH]);
    for number in 0..policies(1, 1).len() {
        let (mut times, mut rate, mut name) = (Vec::new(), 0.0, "");
        for _ in 0..ROUNDS {
            let (named, mut cache) =
                policies_told(ZIPF_SLOTS, ZIPF_WIDTH, &batches).swap_remove(number);
            times.push(timed(|| {
                for ids in &batches {
                    cache.read(&source, ids, &mut lookup, &mut out).expect("lengths fit");
                    black_box(&mut out);
                }
            }));
            (rate, name) = (cache.hits().rate(), named);
        }
        let millions = (batches.len() * BATCH) as f64 / 1e6;
        let speed = spread(times.iter().map(|time| millions / time));
        println!("  {name:<10} {speed} M ids/s, hits {:.1} %", 100.0 * rate);
    }
    let percent = |hits: u64| 100.0 * hits as f64 / trace.accesses() as f64;
    let best = by_frequency(&trace).iter().take(ZIPF_SLOTS as usize).map(|(_, count)| count).sum();
    let bound = |start| percent(belady(&trace, ZIPF_SLOTS as usize, start));
    println!(
        "  best static {:.1} %, Belady {:.1} %, Belady from a warm start {:.1} %",
        percent(best),
        bound(Start::Cold),
        bound(Start::Warm)
    );
    Ok(())
}

fn deduplication() {
    for (name, batches) in [("uniform", uniform(GATHER_ROWS)), ("Zipf", zipf().0)] {
        let (mut unique, mut pairs) = (Unique::new(), Vec::new());
        let (mut ours, mut sorts) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(timed(|| batches.iter().for_each(|ids| unique.take(black_box(ids)))));
            sorts.push(timed(|| batches.iter().for_each(|ids| sort(ids, &mut pairs))));
        }
        let millions = (batches.len() * BATCH) as f64 / 1e6;
        let speeds = |times: &[f64]| spread(times.iter().map(|time| millions / time));
        println!(
            "de-duplication, {name} ids: {} M ids/s, sort {} M ids/s",
            speeds(&ours),
            speeds(&sorts)
        );
    }
}

fn sort(ids: &[u64], pairs: &mut Vec<(u64, u32)>) {
    pairs.clear();
    pairs.extend(ids.iter().copied().zip(0..));
    pairs.sort_unstable();
    black_box(pairs);
}

/// Returns a cache with this many slots for each policy.
fn policies(slots: u32, width: usize) -> Vec<(&'static str, Cache<Box<dyn Policy>>)> {
    policies_told(slots, width, &[])
}

/// Returns a cache for each policy; the foreseen one knows all batches.
fn policies_told(
    slots: u32,
    width: usize,
    batches: &[Vec<u64>],
) -> Vec<(&'static str, Cache<Box<dyn Policy>>)> {
    let bytes = u64::from(slots) * (width + SLOT_BYTES) as u64;
    let cache = |policy: &dyn Fn(u32) -> Box<dyn Policy>| Cache::new(width, bytes, policy);
    let foreseen = |slots| {
        let mut policy = Foreseen::new(slots, batches.len() as u32);
        batches.iter().for_each(|ids| assert!(policy.tell(ids), "there is room for all"));
        Box::new(policy) as Box<dyn Policy>
    };
    vec![
        ("lru", cache(&|slots| Box::new(Lru::new(slots)))),
        ("sieve", cache(&|slots| Box::new(Sieve::new(slots)))),
        ("foreseen", cache(&foreseen)),
    ]
}

/// Returns rows of bytes that are not all equal.
fn table(rows: u32, width: usize) -> Vec<u8> {
    (0..rows as usize * width).map(|at| (at >> 3) as u8).collect()
}

fn copy(table: &[u8], ids: &[u64], out: &mut [u8]) {
    for (id, out) in ids.iter().zip(out.chunks_exact_mut(GATHER_WIDTH)) {
        out.copy_from_slice(&table[*id as usize * GATHER_WIDTH..][..GATHER_WIDTH]);
    }
}

fn uniform(rows: u32) -> Vec<Vec<u64>> {
    let batch = |step| {
        let key = Key { seed: 1, step: u64::from(step), tensor: 0 };
        (0..BATCH as u64).map(|at| u64::from(key.below(at, rows))).collect()
    };
    (0..BATCHES).map(batch).collect()
}

/// Returns batches of ids that are as frequent as 1 over their number, which is also their order.
fn zipf() -> (Vec<Vec<u64>>, Trace) {
    let mut sums = Vec::with_capacity(ZIPF_ROWS as usize);
    let mut sum = 0.0;
    for row in 1..=ZIPF_ROWS {
        sum += 1.0 / f64::from(row);
        sums.push(sum);
    }
    let batch = |step| {
        let key = Key { seed: 2, step: u64::from(step), tensor: 0 };
        let at = |at| (f64::from(key.word(at)) + 0.5) / 4_294_967_296.0 * sum;
        let id = |at| sums.partition_point(|sum| *sum < at) as u64;
        (0..BATCH as u64).map(|number| id(at(number))).collect::<Vec<u64>>()
    };
    let batches: Vec<Vec<u64>> = (0..ZIPF_BATCHES).map(batch).collect();
    let mut trace = Trace::new();
    batches.iter().for_each(|ids| trace.push(ids));
    (batches, trace)
}

/// Returns the seconds of processor time that `work` takes on this thread.
fn timed(work: impl FnOnce()) -> f64 {
    let start = clock_gettime(ClockId::ThreadCPUTime);
    work();
    let end = clock_gettime(ClockId::ThreadCPUTime);
    (end.tv_sec - start.tv_sec) as f64 + (end.tv_nsec - start.tv_nsec) as f64 * 1e-9
}

/// Returns the median, with the least and the most.
fn spread(values: impl Iterator<Item = f64>) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values[values.len() / 2];
    format!("{middle:.2} ({:.2}-{:.2})", values[0], values[values.len() - 1])
}
