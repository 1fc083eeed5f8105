//! Laws of tables with a memory limit, compared with tables without one.

use proptest::prelude::*;
use thinwire_member::Id;

use super::*;
use crate::error::Kind;
use crate::write::{Pull, Write};

const ROWS: u64 = 24;
/// A row of the first table takes 1,204 bytes with its state, so that a page has three rows.
const WIDTHS: [usize; 2] = [100, 7];
const PAGE: u64 = 3612;

/// Step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Push(Vec<u64>),
    Pull(Vec<u64>),
    Limit(u64),
    /// The tables are serialised and read back.
    Move,
}

fn rows() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::btree_set(0..ROWS, 0..8).prop_map(|rows| rows.into_iter().collect())
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => rows().prop_map(Step::Push),
        4 => rows().prop_map(Step::Pull),
        1 => (0..12 * PAGE).prop_map(Step::Limit),
        1 => Just(Step::Move),
    ];
    prop::collection::vec(step, 1..40)
}

fn pieces() -> Vec<Piece> {
    (0..2).map(|table| Piece { table, rows: 0..ROWS }).collect()
}

fn options() -> [TableOptions; 2] {
    let options = |width, optimizer, initial| TableOptions {
        width,
        optimizer: Optimizer::parse(optimizer).unwrap(),
        initial,
        seed: 5,
        stream: 0,
        values: Format::F32,
    };
    [
        options(WIDTHS[0], "lazyadam:lr=0.1", Initial::Normal(0.1)),
        options(WIDTHS[1], "adagrad:lr=0.1", Initial::Uniform(0.3)),
    ]
}

fn limit(bytes_max: u64) -> MemoryLimit {
    MemoryLimit { bytes_max, folder: std::env::temp_dir() }
}

fn limited(bytes_max: u64) -> Tables {
    let mut tables = Tables::new(&pieces(), &options());
    tables.limit(&limit(bytes_max)).unwrap();
    tables
}

fn push(rows: &[u64], step: usize) -> Write {
    let part = |table: usize| {
        let length = rows.len() * WIDTHS[table];
        let gradient =
            (0..length).map(|at| (at + step) as f32 * 0.01 - 0.1).collect::<Vec<f32>>().into();
        Part { table: table as u32, rows: rows.to_vec(), gradient }
    };
    Write::Update { pushes: Vec::new(), parts: vec![part(0), part(1)] }
}

fn pull(rows: &[u64]) -> Pull {
    let rows = vec![(0, rows.to_vec()), (1, rows.to_vec())];
    Pull { client: Id(1), request: 1, after: 0, rows }
}

proptest! {
    #[test]
    fn a_limit_of_memory_changes_no_bit(steps in steps(), least in 0..12 * PAGE) {
        let (mut free, mut tight) = (Tables::new(&pieces(), &options()), limited(least));
        let mut most = least;
        for (at, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push(rows) => {
                    free.apply(&push(&rows, at)).unwrap();
                    tight.apply(&push(&rows, at)).unwrap();
                }
                Step::Pull(rows) => {
                    prop_assert_eq!(free.read(&pull(&rows)).unwrap(), tight.read(&pull(&rows)).unwrap());
                }
                Step::Limit(bytes) => {
                    tight.limit(&limit(bytes)).unwrap();
                    most = bytes;
                }
                Step::Move => {
                    let bytes = tight.to_bytes().unwrap();
                    let read = Tables::read_from(&bytes, &pieces(), &options(), Some(&limit(most)));
                    tight = read.unwrap().unwrap();
                }
            }
            prop_assert_eq!(free.to_bytes().unwrap(), tight.to_bytes().unwrap());
            let least = Tables::least_bytes(&pieces(), &options());
            prop_assert!(tight.bytes() <= most.max(least), "{} of {most}", tight.bytes());
        }
    }

    #[test]
    fn a_disk_that_fails_is_never_silent(
        steps in steps(), at_step in 0_usize..20, pages in 0_usize..4, is_lost: bool
    ) {
        let (mut free, mut tight) = (Tables::new(&pieces(), &options()), limited(0));
        let mut has_failed = false;
        tight.pages.bound(pages * PAGE as usize);
        for (at, step) in steps.into_iter().enumerate() {
            if at == at_step {
                let file = tight.pages.file();
                if is_lost { file.lose() } else { file.spoil() }
            }
            let told = match step {
                Step::Push(rows) => {
                    free.apply(&push(&rows, at)).unwrap();
                    tight.apply(&push(&rows, at)).map(|()| Vec::new())
                }
                Step::Pull(rows) => {
                    let expected = free.read(&pull(&rows)).unwrap();
                    tight.read(&pull(&rows)).map(|values| vec![(expected, values)])
                }
                Step::Limit(_) | Step::Move => continue,
            };
            prop_assert!(told.is_err() || !has_failed, "it has failed before");
            for (expected, values) in told.iter().flatten() {
                prop_assert_eq!(expected, values);
            }
            has_failed |= told.is_err();
            prop_assert!(!has_failed || tight.to_bytes().is_err());
        }
    }
}

#[test]
fn a_full_disk_ends_the_tables() {
    let mut tables = Tables::new(&pieces(), &options());
    tables.fill_disk();
    tables.apply(&push(&[0, 1], 0)).unwrap_err();
    let error = tables.apply(&push(&[0], 1)).unwrap_err();
    assert_eq!(error.kind(), Kind::Disk);
    let text = "cannot write rows beyond the memory limit in /dev/full: No space left on device";
    assert!(error.to_string().starts_with(text), "{error}");
    assert!(tables.read(&pull(&[0])).is_err() && tables.to_bytes().is_err());
}

#[test]
fn a_row_that_nobody_has_written_takes_few_bytes() {
    let piece = Piece { table: 0, rows: 0..1_000_000 };
    let options = [TableOptions {
        width: 16,
        optimizer: Optimizer::parse("sgd:lr=1").unwrap(),
        ..options()[0]
    }];
    let mut tables = Tables::new(&[piece], &options);
    assert!(tables.bytes() < 5_000_000, "{}", tables.bytes());
    let rows = (0..1_000_000).collect();
    let part = Part { table: 0, rows, gradient: vec![1.0; 16_000_000].into() };
    tables.apply(&Write::Update { pushes: Vec::new(), parts: vec![part] }).unwrap();
    assert!(tables.bytes() < 64_000_000 * 12 / 10, "{}", tables.bytes());
}
