//! Files of snapshots, read from memory, for fuzz targets.
//!
//! Checksums and lengths are corrected first, since the checks would refuse random bytes.

use serde_json::Value;
use thinwire_checkpoint::Series;
use thinwire_wire::checksum;

use super::definition;
use crate::configuration::Layout;
use crate::snapshot::{Contents, Image, Manifest};
use crate::table::Tables;

/// Byte after the header of a shard's file; no JSON contains it.
const END: u8 = 0xff;
/// Largest size in bytes of the tensors of a file.
const BODY_BYTES_MAX: u64 = 1 << 12;
/// Fields of a manifest that are corrected.
const SEALS: [&str; 2] = ["fingerprint", "crc32"];

/// Reads any text as a manifest: once unchanged, and once with corrected lengths and checksums.
///
/// # Panics
/// If a manifest that is read differs after it is written and read again, or an error has several lines.
pub fn manifest(text: &[u8]) {
    take_manifest(text);
    sealed(text).into_iter().for_each(|text| take_manifest(&text));
}

fn take_manifest(text: &[u8]) {
    let manifest = match Manifest::from_text(text) {
        Ok(manifest) => manifest,
        Err(why) => return assert!(!why.contains('\n'), "{why}"),
    };
    let written = manifest.to_text();
    let again = Manifest::from_text(written.as_bytes()).expect("a manifest writes itself back");
    assert_eq!(again, manifest);
    assert_eq!(again.checksum(), manifest.checksum());
    if let Err(error) = manifest.record.layout() {
        assert!(!error.contains('\n'), "{error}");
    }
}

/// Corrects the fingerprint of a manifest and its checksum.
fn sealed(text: &[u8]) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(text).ok()?;
    let definition = value.get("definition").cloned().unwrap_or_default();
    let layout =
        serde_json::from_value(definition).ok().and_then(|it: crate::Definition| it.layout().ok());
    let fingerprint = layout.map_or(0, |layout| layout.fingerprint);
    let fields = value.as_object_mut()?;
    SEALS.iter().for_each(|seal| drop(fields.remove(*seal)));
    fields.insert(SEALS[0].to_owned(), format!("{fingerprint:016x}").into());
    let sum = checksum(value.to_string().as_bytes());
    value[SEALS[1]] = sum.into();
    Some(value.to_string().into_bytes())
}

/// Reads the number of a shard (1 byte), a header up to a byte 0xff, and a body as the file of a shard.
///
/// # Panics
/// If a file that is read gives other rows after it is written and read again, or if the shard does not
/// accept its rows although each occurs once.
pub fn shard_file(bytes: &[u8]) {
    let Some((shard, bytes)) = bytes.split_first() else { return };
    let definition = definition();
    let layout = definition.layout().expect("a sound definition");
    let shard = u32::from(*shard) % layout.shards.len() as u32;
    let contents = Contents { definition: &definition, layout: &layout, shard };
    let Ok(images) = contents.read(&file(bytes)) else { return };
    let written = contents.write(&images, |parts| parts.concat());
    let again = contents.read(&written).expect("a file writes itself back");
    // Bytes are compared, since a value that is not a number differs from itself.
    assert_eq!(contents.write(&again, |parts| parts.concat()), written);
    take_rows(&contents, &images, &layout);
}

fn take_rows(contents: &Contents<'_>, images: &[Image], layout: &Layout) {
    let pieces = contents.pieces();
    let mut bytes = Vec::new();
    pieces.iter().zip(images).for_each(|(piece, image)| image.write(piece, &mut bytes));
    let tables =
        Tables::read_from(&bytes, pieces, &layout.tables, None).expect("no disk is needed");
    let is_once = images.iter().all(|image| {
        let mut rows = image.rows.clone();
        rows.sort_unstable();
        rows.windows(2).all(|pair| pair[0] != pair[1])
    });
    assert_eq!(tables.is_some(), is_once);
}

/// Returns the file of a header and a body, which is as long as the header says.
fn file(bytes: &[u8]) -> Vec<u8> {
    let end = bytes.iter().position(|byte| *byte == END).unwrap_or(bytes.len());
    let (header, body) = (&bytes[..end], bytes.get(end + 1..).unwrap_or_default());
    let parsed: Option<Value> = serde_json::from_slice(header).ok();
    let tensors = parsed.as_ref().and_then(Value::as_object).into_iter().flatten();
    let ends = tensors.filter_map(|(_, value)| value["data_offsets"][1].as_u64());
    let length = ends.max().unwrap_or(0).min(BODY_BYTES_MAX);
    let mut body = body.to_vec();
    body.resize(length as usize, 0);
    [&(header.len() as u64).to_le_bytes()[..], header, &body].concat()
}

/// Returns the number of the snapshot whose folder has this name.
///
/// # Panics
/// If the folder of the snapshot with this number has another name.
pub fn snapshot_number(name: &str) -> Option<u64> {
    let number = Series::Snapshots.number_of(name)?;
    assert_eq!(Series::Snapshots.name(number), name);
    Some(number)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn seed(name: &str) -> Vec<u8> {
        fs::read(format!("{}/../../fuzz/seeds/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    }

    /// Returns the rows of the file in a seed, by piece, or the reason for which they are refused.
    fn rows(name: &str) -> Result<Vec<Vec<u64>>, String> {
        let (definition, seed) = (definition(), seed(name));
        let (layout, shard) = (definition.layout().unwrap(), seed[0].into());
        let contents = Contents { definition: &definition, layout: &layout, shard };
        let images = contents.read(&file(&seed[1..]))?;
        Ok(images.into_iter().map(|image| image.rows).collect())
    }

    #[test]
    fn seeds_of_shards_are_read() {
        assert_eq!(rows("shard/first"), Ok(vec![vec![0, 2, 5]]));
        assert_eq!(rows("shard/second"), Ok(vec![vec![7], vec![0, 3, 6]]));
        assert_eq!(rows("shard/twice"), Ok(vec![vec![1, 1]]));
        let refusal = "row 6 of table 'a', expected rows of 0..6".to_owned();
        assert_eq!(rows("shard/outside"), Err(refusal));
    }

    #[test]
    fn seeds_of_manifests_are_read_once_they_are_sealed() {
        for name in ["manifest/whole", "manifest/restored"] {
            let text = seed(name);
            assert!(Manifest::from_text(&text).unwrap_err().starts_with("checksum 0, expected"));
            let manifest = Manifest::from_text(&sealed(&text).unwrap()).unwrap();
            assert_eq!(manifest.record.layout().unwrap().shards.len(), 2);
        }
    }
}
