//! Laws of checkpoints as initial values.

use std::collections::BTreeMap;
use std::fs;

use proptest::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tempfile::TempDir;
use thinwire_member::Id;
use thinwire_server::{
    Checkpoint, Definition, Error, Format, Part, Pull, TableDefinition, Tables, Write,
};
use thinwire_wire::Hint;

const ROWS: u64 = 9;
const WIDTH: usize = 3;

/// Folder of one test, removed at its end.
struct Folder(TempDir);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(TempDir::with_prefix(format!("thinwire-server-{name}-")).unwrap())
    }

    fn checkpoint(&self, bytes: &[u8]) -> Result<Checkpoint, Error> {
        let path = self.0.path().join("model.safetensors");
        fs::write(&path, bytes).unwrap();
        Checkpoint::open(&path)
    }
}

fn table(name: &str, rows: u64, width: u32, initial: &str) -> TableDefinition {
    TableDefinition {
        name: name.to_owned(),
        rows,
        width,
        optimizer: "adagrad:lr=1".to_owned(),
        initial: initial.to_owned(),
        seed: 3,
        stream: 0,
        values: "f32".to_owned(),
    }
}

/// Returns a job with an embedding and a vector of ten values, which begin with a checkpoint, and another
/// table.
fn definition(shards: u32) -> Definition {
    let tables = vec![
        table("items", ROWS, WIDTH as u32, "checkpoint"),
        table("new", 5, 2, "constant:7"),
        table("bias", 3, 4, "checkpoint"),
    ];
    let (consistency, restore) = ("async".to_owned(), Some("a file".to_owned()));
    Definition { tables, consistency, shards, backups: 0, servers: 1, restore }
}

/// Returns values that all types represent exactly.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|at| at as f32 - 4.5).collect()
}

fn bytes(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    let half = |value: &f32| {
        let mut bytes = [0; 2];
        Format::F16.encode(&[*value], &mut bytes);
        bytes
    };
    match dtype {
        Dtype::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Dtype::BF16 => {
            values.iter().flat_map(|value| value.to_bits().to_le_bytes()[2..].to_vec()).collect()
        }
        _ => values.iter().flat_map(half).collect(),
    }
}

/// Returns a file with these tensors: name, type and shape.
fn file(tensors: &[(&str, Dtype, &[usize])]) -> Vec<u8> {
    let count = |shape: &[usize]| shape.iter().product::<usize>();
    let data: Vec<Vec<u8>> =
        tensors.iter().map(|(_, dtype, shape)| bytes(*dtype, &numbers(count(shape)))).collect();
    let mut views = Vec::new();
    for ((name, dtype, shape), data) in tensors.iter().zip(&data) {
        views.push((*name, TensorView::new(*dtype, shape.to_vec(), data).unwrap()));
    }
    safetensors::serialize(views, None).unwrap()
}

/// Reads a row from the shard that has it.
fn row(all: &mut BTreeMap<u32, Tables>, table: u32, row: u64) -> Vec<f32> {
    let pull = Pull { client: Id(1), request: 1, after: 0, rows: vec![(table, vec![row])] };
    let owner = all.values_mut().find(|tables| tables.check_pull(&pull).is_ok()).unwrap();
    owner.read(&pull).unwrap()
}

proptest! {
    #[test]
    fn tables_begin_with_the_tensors_of_their_names_at_any_number_of_shards(
        shards in 1_u32..6,
        dtype in prop_oneof![Just(Dtype::F32), Just(Dtype::F16), Just(Dtype::BF16)],
    ) {
        let folder = Folder::new("law");
        let items = ("items.weight", dtype, &[ROWS as usize, WIDTH][..]);
        let checkpoint = folder.checkpoint(&file(&[items, ("bias", dtype, &[10])])).unwrap();
        let definition = definition(shards);
        checkpoint.check(&definition).unwrap();
        let layout = definition.layout().unwrap();
        let all: Vec<u32> = (0..shards).collect();
        let mut all = checkpoint.tables(&definition, &layout, &all).unwrap();
        let values = numbers(ROWS as usize * WIDTH);
        for number in 0..ROWS {
            let expected = &values[number as usize * WIDTH..][..WIDTH];
            prop_assert_eq!(&row(&mut all, 0, number)[..], expected);
        }
        prop_assert_eq!(row(&mut all, 2, 2), [numbers(10)[8], numbers(10)[9], 0.0, 0.0]);
        prop_assert_eq!(row(&mut all, 1, 4), [7.0, 7.0]);
        let written = |tables: &Tables| tables.tables().iter().map(|it| it.written()).sum::<usize>();
        prop_assert_eq!(all.values().map(written).sum::<usize>(), ROWS as usize + 3);
    }

    #[test]
    fn any_bytes_are_a_checkpoint_or_an_error_of_one_line(at: usize, byte: u8, cut: bool) {
        let folder = Folder::new("bytes");
        let mut bytes = file(&[("items", Dtype::F32, &[9, 3]), ("bias", Dtype::F16, &[10])]);
        // Damage hits the header or the first numbers: a change elsewhere gives another valid file.
        let at = at % bytes.len().min(160);
        bytes[at] = byte;
        if cut {
            bytes.truncate(at);
        }
        let definition = definition(3);
        let layout = definition.layout().unwrap();
        let loaded = folder.checkpoint(&bytes).and_then(|checkpoint| {
            checkpoint.check(&definition)?;
            checkpoint.tables(&definition, &layout, &[0, 1, 2])
        });
        if let Err(error) = loaded {
            prop_assert!(!error.to_string().contains('\n'), "{}", error);
        }
    }
}

#[test]
fn an_optimiser_goes_on_from_the_values_without_any_state() {
    let folder = Folder::new("update");
    let shape: &[usize] = &[ROWS as usize, WIDTH];
    let bytes = file(&[("items", Dtype::F32, shape), ("bias", Dtype::F32, &[10])]);
    let checkpoint = folder.checkpoint(&bytes).unwrap();
    let definition = definition(1);
    let layout = definition.layout().unwrap();
    let mut all = checkpoint.tables(&definition, &layout, &[0]).unwrap();
    let part = Part { table: 0, rows: vec![1], gradient: vec![2.0; WIDTH].into() };
    let write = Write::Update { pushes: Vec::new(), parts: vec![part] };
    all.get_mut(&0).unwrap().apply(&write).unwrap();
    let found = row(&mut all, 0, 1);
    let expected = &numbers(6)[3..];
    // The first step of adagrad has the length of its learning rate.
    assert!(found.iter().zip(expected).all(|(a, b)| (a - (b - 1.0)).abs() < 1e-4), "{found:?}");
    let values = checkpoint.values("bias", &[10]).unwrap();
    assert_eq!(values, numbers(10));
}

#[test]
fn refusals_name_both_values() {
    let folder = Folder::new("refusals");
    let refusal = |bytes: &[u8], definition: &Definition| {
        let checked = folder.checkpoint(bytes).and_then(|it| it.check(definition));
        let error = checked.unwrap_err();
        let text = error.to_string().replace(&format!("{}/", folder.0.path().display()), "");
        (text, error.hint().map(str::to_owned))
    };
    let bias = ("bias", Dtype::F32, &[10][..]);
    let items = |dtype, shape: &'static [usize]| ("items", dtype, shape);
    let of = |first| refusal(&file(&[first, bias]), &definition(1));

    let (text, hint) = of(("users", Dtype::F32, &[9, 3][..]));
    assert_eq!(
        text,
        "no tensor 'items' or 'items.weight' or 'items.embedding_table' in model.safetensors"
    );
    let hint = hint.unwrap();
    assert!(hint == "its 2 tensors are users, bias" || hint == "its 2 tensors are bias, users");
    let (text, _) = of(items(Dtype::F32, &[3, 9]));
    assert_eq!(text, "tensor 'items' in model.safetensors is [3, 9], expected [9, 3]");
    let (text, _) = of(items(Dtype::F32, &[28]));
    assert_eq!(text, "tensor 'items' in model.safetensors is [28], expected [9, 3]");
    let (text, _) = of(items(Dtype::I16, &[9, 3]));
    assert_eq!(text, "tensor 'items' in model.safetensors is I16, expected F32, F16 or BF16");

    let mut none = definition(1);
    none.tables.truncate(2);
    none.tables[0].initial = "zeros".to_owned();
    let (text, _) = refusal(&file(&[bias]), &none);
    assert_eq!(text, "no table begins with model.safetensors");
    let whole = file(&[items(Dtype::F32, &[9, 3]), bias]);
    let (text, _) = refusal(&whole[..whole.len() - 1], &definition(1));
    let (found, expected) = (whole.len() - 1, whole.len());
    let place = "no safetensors file at model.safetensors";
    assert_eq!(text, format!("{place}: {found} bytes, expected {expected}"));
    let long = [&u64::MAX.to_le_bytes()[..], &whole[8..]].concat();
    let (text, _) = refusal(&long, &definition(1));
    assert_eq!(text, format!("{place}: header of {} bytes, expected at most {expected}", u64::MAX));
}

#[test]
fn other_contents_have_other_names() {
    let folder = Folder::new("names");
    let mut bytes = file(&[("items", Dtype::F32, &[9, 3])]);
    let one = folder.checkpoint(&bytes).unwrap().name();
    assert!(one.starts_with("model.safetensors ("), "{one}");
    *bytes.last_mut().unwrap() ^= 1;
    assert_ne!(folder.checkpoint(&bytes).unwrap().name(), one);
}
