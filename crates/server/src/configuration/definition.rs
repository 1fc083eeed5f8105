//! Definition of a job's tables: all settings on which its servers and clients must agree.
//!
//! A definition consists of texts and numbers; a [`Layout`] is its parsed form. Law: definitions with equal
//! layouts have equal fingerprints.

use serde::{Deserialize, Serialize};
use thinwire_rows::Format;
use thinwire_update::Optimizer;

use crate::consistency::Consistency;
use crate::cut::{Extent, Piece, cut};
use crate::error::Error;
use crate::table::{Initial, TableOptions, Tables};

/// Largest number of rows of a table.
pub const ROWS_MAX: u64 = 1 << 40;
/// Largest number of values per row.
pub const WIDTH_MAX: u32 = 65_536;
/// Largest number of tables.
pub const TABLES_MAX: usize = 1024;
/// Largest number of shards.
pub const SHARDS_MAX: u32 = 4096;
/// Largest number of servers that a job waits for.
pub const SERVERS_MAX: u32 = 1024;
/// Largest number of backups of a shard.
pub const BACKUPS_MAX: u32 = 15;
/// Largest size of a definition as JSON, in bytes, so that a state that contains it fits in a message.
pub const DEFINITION_BYTES_MAX: usize = 128 << 10;
/// Largest length of a table's name, in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Largest number of rows of all tables in one shard, which numbers them in 32 bits.
const SHARD_ROWS_MAX: u64 = u32::MAX as u64 - 1;

/// Definition of one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableDefinition {
    /// Name, unique in the job.
    pub name: String,
    /// Number of rows.
    pub rows: u64,
    /// Values per row.
    pub width: u32,
    /// Optimiser, in the syntax of [`Optimizer::parse`].
    pub optimizer: String,
    /// Initial values, in the syntax of [`Initial::parse`].
    pub initial: String,
    /// Seed of the initial values.
    pub seed: u64,
    /// Random stream of the initial values; tables with equal seed and stream start alike.
    pub stream: u32,
    /// Format in which values and gradients are sent, logged and cached, in the syntax of [`Format::parse`].
    #[serde(default = "exact")]
    pub values: String,
}

/// Tables of a job, and settings of the servers that store them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// Tables; the number of a table is its index.
    pub tables: Vec<TableDefinition>,
    /// Rule by which pushes and pulls are delayed, in the syntax of [`Consistency::parse`].
    pub consistency: String,
    /// Number of shards, which never changes.
    pub shards: u32,
    /// Number of backups of each shard; `--replicas` of the command, `replicas` in Python.
    pub backups: u32,
    /// Number of servers with which the job begins.
    pub servers: u32,
    /// Name of the files with which the job begins ([`crate::Origin::name`]), if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<String>,
}

/// Fields of a [`Definition`] as they travel. JSON files and fingerprints leave out a `restore` of `None`;
/// messages have no field names, so they need it.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Definition")]
pub(super) struct DefinitionFields {
    tables: Vec<TableDefinition>,
    consistency: String,
    shards: u32,
    backups: u32,
    servers: u32,
    restore: Option<String>,
}

/// Parsed form of a definition.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// Settings, by table.
    pub tables: Vec<TableOptions>,
    /// Rule by which pushes and pulls are delayed.
    pub consistency: Consistency,
    /// Pieces of tables, by shard.
    pub shards: Vec<Vec<Piece>>,
    /// Hash of the definition (64-bit FNV-1a).
    pub fingerprint: u64,
}

impl Layout {
    /// Returns the smallest memory, in bytes, that a server needs for an equal part of the shards and
    /// their backups.
    pub(crate) fn least_bytes(&self, backups: usize, servers: usize) -> u64 {
        let least = self.shards.iter().map(|pieces| Tables::least_bytes(pieces, &self.tables));
        let copies = (1 + backups).min(servers) as u64;
        (least.sum::<u64>() * copies).div_ceil(servers.max(1) as u64)
    }
}

impl Definition {
    /// Checks and parses the definition.
    ///
    /// # Errors
    /// [`crate::Kind::Invalid`] if a setting is invalid, with its value and the expected one.
    pub fn layout(&self) -> Result<Layout, Error> {
        self.check_counts()?;
        let bytes = self.to_bytes().len() as u64;
        check("bytes of a definition as JSON", bytes, 1, DEFINITION_BYTES_MAX as u64)?;
        let consistency = Consistency::parse(&self.consistency);
        let consistency = consistency.map_err(|error| Error::invalid(error.to_string()))?;
        let tables = self.tables.iter().map(TableDefinition::options);
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        self.check_names()?;
        self.check_origin(&tables)?;
        let shards = cut(&self.extents(&tables)?, self.shards as usize);
        check_shards(&shards)?;
        let fingerprint = self.hash(&tables, consistency);
        Ok(Layout { tables, consistency, shards, fingerprint })
    }

    /// Returns the hash of the definition (64-bit FNV-1a), equal on all machines.
    ///
    /// # Errors
    /// As for [`Definition::layout`].
    pub fn fingerprint(&self) -> Result<u64, Error> {
        Ok(self.layout()?.fingerprint)
    }

    /// Returns the first difference from the job's definition in one line, or `None`.
    pub fn difference(&self, job: &Definition) -> Option<String> {
        let counts = [
            ("tables", self.tables.len(), job.tables.len()),
            ("shards", self.shards as usize, job.shards as usize),
            ("replicas", self.backups as usize, job.backups as usize),
            ("servers to begin with", self.servers as usize, job.servers as usize),
        ];
        if let Some((name, found, has)) = counts.iter().find(|(_, found, has)| found != has) {
            return Some(format!("definition with {found} {name}, the job has {has}"));
        }
        let (found, has) = (&self.consistency, &job.consistency);
        if Consistency::parse(found) != Consistency::parse(has) {
            return Some(format!("definition with consistency {found}, the job has {has}"));
        }
        if self.restore != job.restore {
            let name = |restore: &Option<String>| restore.clone().unwrap_or("nothing".to_owned());
            let (found, has) = (name(&self.restore), name(&job.restore));
            return Some(format!("definition continues from {found}, but the job from {has}"));
        }
        self.difference_of_tables(job, "in the job")
    }

    /// Returns, in one line, the first difference from the tables of another definition, which has the same
    /// number of tables. `whose` tells users which definition that is, for example `in the job`.
    pub(crate) fn difference_of_tables(&self, other: &Definition, whose: &str) -> Option<String> {
        let pairs = self.tables.iter().zip(&other.tables).enumerate();
        pairs.filter_map(|(number, (found, has))| found.difference(has, number, whose)).next()
    }

    fn check_counts(&self) -> Result<(), Error> {
        check("tables", self.tables.len() as u64, 1, TABLES_MAX as u64)?;
        check("shards", self.shards.into(), 1, SHARDS_MAX.into())?;
        check("servers to begin with", self.servers.into(), 1, SERVERS_MAX.into())?;
        check("replicas", self.backups.into(), 0, BACKUPS_MAX.into())
    }

    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers are JSON")
    }

    fn check_names(&self) -> Result<(), Error> {
        let is_double =
            |at: &usize| self.tables[..*at].iter().any(|t| t.name == self.tables[*at].name);
        match (0..self.tables.len()).find(is_double) {
            None => Ok(()),
            Some(at) => {
                let name = &self.tables[at].name;
                let first = self.tables.iter().position(|table| table.name == *name).unwrap_or(at);
                let message = format!("tables {first} and {at} are both called '{name}'");
                Err(Error::invalid(message))
            }
        }
    }

    /// Checks that a definition names the file of the checkpoint if some of its tables begin with one.
    fn check_origin(&self, options: &[TableOptions]) -> Result<(), Error> {
        let begins = |options: &TableOptions| options.initial == Initial::Checkpoint;
        match options.iter().position(begins).filter(|_| self.restore.is_none()) {
            None => Ok(()),
            Some(at) => {
                let name = &self.tables[at].name;
                let message =
                    format!("table '{name}' begins with a checkpoint, but the job has none");
                Err(Error::invalid(message)
                    .with_hint("give the safetensors file of the checkpoint as `restore`"))
            }
        }
    }

    /// Returns the sizes of the tables. The size of a row includes its optimiser state and version.
    fn extents(&self, options: &[TableOptions]) -> Result<Vec<Extent>, Error> {
        let extent = |(table, options): (&TableDefinition, &TableOptions)| {
            let slots = options.optimizer.rule.slots() as u64;
            Extent { rows: table.rows, row_bytes: 4 * u64::from(table.width) * (1 + slots) + 8 }
        };
        let extents: Vec<Extent> = self.tables.iter().zip(options).map(extent).collect();
        let bytes: u128 =
            extents.iter().map(|e| u128::from(e.rows) * u128::from(e.row_bytes)).sum();
        match u64::try_from(bytes) {
            Ok(_) => Ok(extents),
            Err(_) => Err(Error::invalid(format!("tables of {bytes} bytes, expected below 2^64"))),
        }
    }

    fn hash(&self, tables: &[TableOptions], consistency: Consistency) -> u64 {
        let mut normal = self.clone();
        normal.consistency = consistency.to_string();
        for (table, options) in normal.tables.iter_mut().zip(tables) {
            table.optimizer = options.optimizer.to_string();
            table.initial = options.initial.to_string();
        }
        thinwire_wire::fingerprint(normal.to_bytes())
    }
}

impl TableDefinition {
    fn options(&self) -> Result<TableOptions, Error> {
        let name = &self.name;
        check("bytes of a table's name", name.len() as u64, 1, NAME_BYTES_MAX as u64)?;
        check(&format!("rows of table '{name}'"), self.rows, 1, ROWS_MAX)?;
        check(
            &format!("values per row of table '{name}'"),
            self.width.into(),
            1,
            WIDTH_MAX.into(),
        )?;
        let wrong = |error: String| Error::invalid(format!("table '{name}': {error}"));
        let optimizer = Optimizer::parse(&self.optimizer).map_err(|e| wrong(e.to_string()))?;
        let initial = Initial::parse(&self.initial).map_err(|e| wrong(e.to_string()))?;
        let values = Format::parse(&self.values).map_err(|e| wrong(e.to_string()))?;
        Ok(TableOptions {
            width: self.width as usize,
            optimizer,
            initial,
            seed: self.seed,
            stream: self.stream,
            values,
        })
    }

    fn difference(&self, job: &TableDefinition, number: usize, whose: &str) -> Option<String> {
        if self.name != job.name {
            let (found, has) = (&self.name, &job.name);
            return Some(format!("table {number} is called '{found}', {whose} '{has}'"));
        }
        // Parsed and written again, texts that mean the same are equal.
        let texts = |table: &TableDefinition| {
            [
                ("rows", table.rows.to_string()),
                ("width", table.width.to_string()),
                ("optimiser", shown(Optimizer::parse(&table.optimizer), &table.optimizer)),
                ("initial values", shown(Initial::parse(&table.initial), &table.initial)),
                ("seed", table.seed.to_string()),
                ("stream", table.stream.to_string()),
                ("values", table.values.clone()),
            ]
        };
        let pairs = texts(self).into_iter().zip(texts(job));
        let found = pairs.into_iter().find(|(found, has)| found != has);
        found.map(|((field, found), (_, has))| {
            format!("table '{}' with {field} {found}, {whose} {has}", self.name)
        })
    }
}

impl Layout {
    /// Returns the number of rows of a table.
    pub fn rows(&self, table: u32) -> u64 {
        let pieces = self.shards.iter().flatten().filter(|piece| piece.table == table);
        pieces.map(|piece| piece.rows.end).max().unwrap_or(0)
    }
}

fn exact() -> String {
    Format::F32.to_string()
}

fn shown<T: ToString, E>(parsed: Result<T, E>, text: &str) -> String {
    parsed.map_or_else(|_| text.to_owned(), |value| value.to_string())
}

fn check(what: &str, found: u64, least: u64, most: u64) -> Result<(), Error> {
    match (least..=most).contains(&found) {
        true => Ok(()),
        false => Err(Error::invalid(format!("{found} {what}, expected {least} to {most}"))),
    }
}

fn check_shards(shards: &[Vec<Piece>]) -> Result<(), Error> {
    let count = |pieces: &Vec<Piece>| pieces.iter().map(|p| p.rows.end - p.rows.start).sum::<u64>();
    let most = shards.iter().map(count).max().unwrap_or(0);
    match most <= SHARD_ROWS_MAX {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "{most} rows in one of {} shards, expected at most {SHARD_ROWS_MAX}",
            shards.len()
        ))
        .with_hint("give more shards")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> Definition {
        let table = |name: &str, rows, width| TableDefinition {
            name: name.to_owned(),
            rows,
            width,
            optimizer: "adagrad:lr=0.1".to_owned(),
            initial: "normal:0.01".to_owned(),
            seed: 7,
            stream: 0,
            values: "f32".to_owned(),
        };
        Definition {
            tables: vec![table("users", 100, 4), table("items", 1000, 8)],
            consistency: "bounded:0".to_owned(),
            shards: 8,
            backups: 1,
            servers: 2,
            restore: None,
        }
    }

    fn refusal(change: impl FnOnce(&mut Definition)) -> String {
        let mut definition = definition();
        change(&mut definition);
        definition.layout().unwrap_err().to_string()
    }

    #[test]
    fn every_row_has_a_shard() {
        let layout = definition().layout().unwrap();
        assert_eq!((layout.consistency, layout.shards.len()), (Consistency::Sync, 8));
        assert_eq!((layout.rows(0), layout.rows(1), layout.rows(2)), (100, 1000, 0));
    }

    #[test]
    fn refusals_name_both_values() {
        assert_eq!(refusal(|d| d.tables.clear()), "0 tables, expected 1 to 1024");
        assert_eq!(refusal(|d| d.shards = 4097), "4097 shards, expected 1 to 4096");
        assert_eq!(refusal(|d| d.servers = 0), "0 servers to begin with, expected 1 to 1024");
        assert_eq!(
            refusal(|d| d.tables[0].width = 65_537),
            "65537 values per row of table 'users', expected 1 to 65536"
        );
        assert_eq!(
            refusal(|d| d.tables[1].rows = 0),
            "0 rows of table 'items', expected 1 to 1099511627776"
        );
        assert_eq!(
            refusal(|d| d.tables[1].name = "users".to_owned()),
            "tables 0 and 1 are both called 'users'"
        );
        assert_eq!(
            refusal(|d| d.tables[0].optimizer = "sgd".to_owned()),
            "table 'users': sgd has no learning rate, expected one such as sgd:lr=0.01"
        );
        assert_eq!(
            refusal(|d| d.tables[0].initial = "ones".to_owned()),
            "table 'users': initial values 'ones', expected zeros, constant:VALUE, uniform:BOUND, normal:DEVIATION or checkpoint"
        );
        assert_eq!(
            refusal(|d| d.tables[1].initial = "checkpoint".to_owned()),
            "table 'items' begins with a checkpoint, but the job has none"
        );
        assert_eq!(
            refusal(|d| d.tables[1].values = "int4".to_owned()),
            "table 'items': format 'int4', expected f32, f16 or int8"
        );
        assert_eq!(
            refusal(|d| d.consistency = "bounded".to_owned()),
            "consistency 'bounded', expected sync, async or bounded:STEPS"
        );
        assert_eq!(
            refusal(|d| (d.tables[0].rows, d.shards) = (ROWS_MAX, 4)),
            "274877907394 rows in one of 4 shards, expected at most 4294967294"
        );
    }

    #[test]
    fn texts_that_mean_one_thing_have_one_fingerprint() {
        let (one, mut other) = (definition(), definition());
        other.consistency = "sync".to_owned();
        other.tables[0].optimizer = "adagrad:lr=1e-1".to_owned();
        assert_eq!(one.fingerprint().unwrap(), other.fingerprint().unwrap());
        assert_eq!(one.difference(&other), None);
        other.tables[1].seed = 8;
        assert_ne!(one.fingerprint().unwrap(), other.fingerprint().unwrap());
        assert_eq!(
            one.difference(&other).as_deref(),
            Some("table 'items' with seed 7, in the job 8")
        );
    }
}
