//! Laws of snapshots in folders.

#[cfg(feature = "s3")]
mod buckets;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;
use thinwire_checkpoint::{Location, Store};
use thinwire_member::Id;
use thinwire_wire::Hint;

use super::*;
use crate::configuration::{Definition, Layout, TableDefinition};
use crate::frontier::Frontier;
use crate::table::Tables;
use crate::write::{Part, Write};

const ROWS: [u64; 2] = [30, 17];

struct Folder(TempDir);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(TempDir::with_prefix(format!("thinwire-server-{name}-")).unwrap())
    }

    fn location(&self) -> Location {
        Location::Folder(self.0.path().to_owned())
    }

    fn store(&self) -> Arc<dyn Store> {
        self.location().store().unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

pub fn definition(shards: u32) -> Definition {
    let table = |name: &str, rows, width, optimizer: &str| TableDefinition {
        name: name.to_owned(),
        rows,
        width,
        optimizer: optimizer.to_owned(),
        initial: "normal:0.1".to_owned(),
        seed: 3,
        stream: 0,
        values: "f32".to_owned(),
    };
    let tables = vec![
        table("users", ROWS[0], 3, "lazyadam:lr=0.1"),
        table("users.rows", ROWS[1], 2, "sgd:lr=1"),
    ];
    let consistency = "async".to_owned();
    Definition { tables, consistency, shards, backups: 0, servers: 1, restore: None }
}

/// Returns the tables of all shards after updates of some rows.
pub fn tables(layout: &Layout, touched: &[(u8, u64)]) -> BTreeMap<u32, Tables> {
    let shards = (0..).zip(&layout.shards);
    let mut all: BTreeMap<u32, Tables> =
        shards.map(|(shard, pieces)| (shard, Tables::new(pieces, &layout.tables))).collect();
    for (at, (table, row)) in touched.iter().enumerate() {
        let (table, row) = (u32::from(table % 2), row % ROWS[usize::from(table % 2)]);
        let owns = |pieces: &Vec<crate::Piece>| {
            pieces.iter().any(|piece| piece.table == table && piece.rows.contains(&row))
        };
        let shard = layout.shards.iter().position(owns).unwrap() as u32;
        let gradient = vec![at as f32 * 0.25 - 1.0; layout.tables[table as usize].width];
        let parts = vec![Part { table, rows: vec![row], gradient: gradient.into() }];
        all.get_mut(&shard).unwrap().apply(&Write::Update { pushes: Vec::new(), parts }).unwrap();
    }
    all
}

fn bytes(tables: &Tables) -> Vec<u8> {
    tables.to_bytes().unwrap()
}

pub fn frontier() -> Frontier {
    Frontier { pushes: BTreeMap::from([(Id(7), 12)]) }
}

/// Writes a snapshot of the tables into a folder and returns its name.
fn written(location: &Location, definition: &Definition, touched: &[(u8, u64)]) -> String {
    write_with(location.store().unwrap(), (1, 9), definition, touched)
}

/// Writes a snapshot of the tables with this number, requested by a process of a job, and returns its
/// name.
pub fn write_with(
    store: Arc<dyn Store>,
    (number, asker): (u64, u64),
    definition: &Definition,
    touched: &[(u8, u64)],
) -> String {
    let layout = Arc::new(definition.layout().unwrap());
    let (about, asker) = (definition.clone(), Id(asker));
    let draft = Draft::create(store, number, asker, about, Arc::clone(&layout)).unwrap();
    for (shard, tables) in tables(&layout, touched) {
        draft.write(shard, &bytes(&tables)).unwrap();
    }
    draft.seal(frontier()).unwrap()
}

/// Returns versions, values and state of all rows, without regard to their order in memory.
pub fn rows_of(all: &BTreeMap<u32, Tables>, layout: &Layout) -> BTreeMap<(u32, u64), Vec<u32>> {
    let mut rows = BTreeMap::new();
    for (shard, tables) in all {
        let pieces = &layout.shards[*shard as usize];
        let images = super::image::Image::read_all(&bytes(tables), pieces, &layout.tables).unwrap();
        for (piece, image) in pieces.iter().zip(images) {
            let widths = super::image::Widths::of(&layout.tables[piece.table as usize]);
            for (at, row) in image.rows.iter().enumerate() {
                let values = &image.values[at * widths.values..][..widths.values];
                let state = &image.state[at * widths.state..][..widths.state];
                let bits = values.iter().chain(state).map(|value| value.to_bits());
                let all = std::iter::once(image.versions[at]).chain(bits);
                rows.insert((piece.table, *row), all.collect());
            }
        }
    }
    rows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn rows_are_restored_bit_for_bit_at_any_number_of_shards(
        touched in prop::collection::vec((any::<u8>(), 0_u64..1000), 0..60),
        shards in 1_u32..9, other in 1_u32..9
    ) {
        let folder = Folder::new("restored");
        let (one, two) = (definition(shards), definition(other));
        written(&folder.location(), &one, &touched);
        let snapshot = Snapshot::open(&folder.location()).unwrap();
        snapshot.check(&two).unwrap();
        let (layout, other_layout) = (one.layout().unwrap(), two.layout().unwrap());
        let expected = rows_of(&tables(&layout, &touched), &layout);
        let all: Vec<u32> = (0..other).collect();
        let found = snapshot.tables(&other_layout, &all).unwrap();
        prop_assert_eq!(rows_of(&found, &other_layout), expected.clone());
        // A server loads only its own shards.
        let some = snapshot.tables(&other_layout, &all[..1]).unwrap();
        let first = &other_layout.shards[0];
        let is_first = |((table, row), _): &(&(u32, u64), &Vec<u32>)| {
            first.iter().any(|piece| piece.table == *table && piece.rows.contains(row))
        };
        let expected: BTreeMap<_, _> =
            expected.iter().filter(is_first).map(|(key, row)| (*key, row.clone())).collect();
        prop_assert_eq!(rows_of(&some, &other_layout), expected);
        prop_assert_eq!(snapshot.frontier(), &frontier());
    }
}

#[test]
fn files_are_as_other_tools_read_them_and_equal_shards_have_equal_bytes() {
    let folder = Folder::new("files");
    let touched = [(0, 4), (0, 2), (1, 3)];
    let names = [1, 2].map(|_| written(&folder.location(), &definition(2), &touched));
    assert_eq!(names, ["snapshot-000001", "snapshot-000002"]);
    assert_eq!(folder.names(), names, "no draft is left");
    let file =
        |name: &str| fs::read(folder.0.path().join(name).join("shard-00000.safetensors")).unwrap();
    assert_eq!(file(&names[0]), file(&names[1]));
    let bytes = file(&names[0]);
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let rows: Vec<i64> = bytemuck::pod_collect_to_vec(tensors.tensor("users.rows").unwrap().data());
    assert_eq!(rows, [4, 2]);
    assert_eq!(tensors.tensor("users.values").unwrap().shape(), [2, 3]);
    assert_eq!(tensors.tensor("users.state").unwrap().shape(), [2, 6]);
}

#[test]
fn a_snapshot_of_other_tables_is_refused_with_both_values() {
    let folder = Folder::new("other");
    written(&folder.location(), &definition(2), &[]);
    let snapshot = Snapshot::open(&folder.location()).unwrap();
    let refusal = |change: &dyn Fn(&mut Definition)| {
        let mut definition = definition(5);
        change(&mut definition);
        let error = snapshot.check(&definition).unwrap_err();
        assert!(error.hint().is_some());
        error.to_string().rsplit_once(" is of another model: ").unwrap().1.to_owned()
    };
    assert_eq!(
        refusal(&|it| it.tables[0].width = 4),
        "table 'users' with width 4, in the snapshot 3"
    );
    assert_eq!(
        refusal(&|it| it.tables[1].name = "items".to_owned()),
        "table 1 is called 'items', in the snapshot 'users.rows'"
    );
    assert_eq!(refusal(&|it| it.tables.truncate(1)), "1 tables, but the snapshot has 2");
    let rule = refusal(&|it| it.tables[1].optimizer = "adagrad:lr=1".to_owned());
    assert!(rule.starts_with("table 'users.rows' with optimiser adagrad"), "{rule}");
    let mut slower = definition(5);
    slower.tables[1].optimizer = "sgd:lr=0.5".to_owned();
    slower.tables[1].values = "f16".to_owned();
    snapshot.check(&slower).unwrap();
}

#[test]
fn damaged_snapshots_are_refused_by_the_name_of_the_file() {
    let folder = Folder::new("damaged");
    let name = written(&folder.location(), &definition(2), &[(0, 1), (1, 1)]);
    let path = folder.0.path().join(name);
    let layout = definition(3).layout().unwrap();
    let load = || Snapshot::open(&folder.location()).and_then(|it| it.tables(&layout, &[0, 1, 2]));
    let file = path.join("shard-00001.safetensors");
    let whole = fs::read(&file).unwrap();
    let refusal = |text: &str| {
        let error = load().unwrap_err().to_string();
        assert!(error.contains(&*file.to_string_lossy()) && error.contains(text), "{error}");
    };
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    refusal(&format!("{} bytes, expected {}", whole.len() - 1, whole.len()));
    let mut other = whole.clone();
    *other.last_mut().unwrap() ^= 1;
    fs::write(&file, &other).unwrap();
    refusal("checksum");
    fs::remove_file(&file).unwrap();
    refusal("No such file");
    fs::write(&file, &whole).unwrap();
    load().unwrap();
    let manifest = path.join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("\"shards\": 2", "\"shards\": 1")).unwrap();
    assert!(load().unwrap_err().to_string().contains("manifest.json: checksum"));
    fs::remove_file(&manifest).unwrap();
    let error = load().unwrap_err();
    assert!(error.to_string().starts_with("no snapshot at "), "{error}");
    let hint = "give a folder snapshot-NNNNNN, the folder or bucket that contains it, or a \
        safetensors file";
    assert_eq!(error.hint(), Some(hint));
}

#[test]
fn a_draft_that_lacks_a_shard_is_no_snapshot() {
    let folder = Folder::new("lacking");
    written(&folder.location(), &definition(2), &[]);
    let layout = Arc::new(definition(2).layout().unwrap());
    let create =
        |store, number| Draft::create(store, number, Id(9), definition(2), Arc::clone(&layout));
    let draft = create(folder.store(), 2).unwrap();
    draft.write(0, &bytes(&tables(&layout, &[])[&0])).unwrap();
    assert!(draft.write(0, &bytes(&tables(&layout, &[])[&0])).is_err(), "nothing is overwritten");
    let error = draft.seal(frontier()).unwrap_err().to_string();
    assert!(error.contains("shard-00001") && error.contains("share the folder"), "{error}");
    assert!(Snapshot::open(&folder.location()).unwrap().path().ends_with("snapshot-000001"));
    create(folder.store(), 2).unwrap().discard();
    assert_eq!(folder.names(), ["snapshot-000001"]);
    let file = folder.0.path().join("file");
    fs::write(&file, "").unwrap();
    let error = create(Location::from(file).store().unwrap(), 3).unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("cannot create ") && !error.contains('\n'), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_bytes_are_a_shard_or_refused(at: usize, byte: u8, cut: bool) {
        let definition = definition(1);
        let layout = definition.layout().unwrap();
        let contents =
            super::shard_file::Contents { definition: &definition, layout: &layout, shard: 0 };
        let tables = tables(&layout, &[(0, 1), (1, 1), (0, 5)]);
        let images = super::image::Image::read_all(
            &bytes(&tables[&0]), &layout.shards[0], &layout.tables).unwrap();
        let mut file = contents.write(&images, |parts| parts.concat());
        prop_assert_eq!(contents.read(&file).unwrap(), images);
        let at = at % file.len();
        file[at] = byte;
        if cut {
            file.truncate(at);
        }
        if let Err(why) = contents.read(&file) {
            prop_assert!(!why.contains('\n'));
        }
    }
}
