//! Source of a model, which is a name or a file of another program, and the machines of a plan.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use thinwire_model::{Error, Graph, ModelFile, named, usual_sequence};
use thinwire_onnx::OnnxFile;
use thinwire_plan::Cluster;

use crate::file;

/// Parses the text of a cluster file.
///
/// # Errors
/// If the text does not describe a cluster.
pub fn cluster(path: &Path, text: &str) -> Result<Cluster> {
    file::parsed(path, &file::CLUSTER, Cluster::parse(text))
}

/// Most bytes of constants in external files of a model.
const EXTERNAL_BYTES_MAX: usize = 1 << 28;

/// Reads the numbers of constants from the external files of a model. Files that cannot be read are skipped:
/// if a graph needs one of them, its error names the file.
fn supplied(path: &Path, mut file: OnnxFile) -> Result<OnnxFile, Error> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut left = EXTERNAL_BYTES_MAX;
    for external in file.external()? {
        let Some(rest) = left.checked_sub(external.length) else { break };
        let path = folder.join(&external.file);
        if let Ok(bytes) = file::range(&path, external.offset, external.length) {
            left = rest;
            file.supply(&external, bytes);
        }
    }
    Ok(file)
}

/// A source from which graphs of a model can be made.
#[derive(Clone, Debug)]
pub enum Source {
    /// A built-in model.
    Name(String),
    /// A file written by `model show --output`.
    File(String, ModelFile),
    /// An ONNX file.
    Onnx(String, OnnxFile),
}

impl Source {
    /// Opens the model with a name, or a file if the text ends like a file name.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a model.
    pub fn open(text: &str) -> Result<Source> {
        match Path::new(text).extension().and_then(|extension| extension.to_str()) {
            Some("json") => {
                let read = file::text(Path::new(text), &file::MODEL)?;
                let parsed = ModelFile::parse(&read);
                let parsed = file::parsed(Path::new(text), &file::MODEL, parsed)?;
                Ok(Source::File(text.to_owned(), parsed))
            }
            Some("onnx") => {
                let bytes = file::bytes(Path::new(text), &file::ONNX)?;
                let parsed = OnnxFile::new(bytes);
                let parsed = file::parsed(Path::new(text), &file::ONNX, parsed)?;
                let supplied = supplied(Path::new(text), parsed);
                let parsed = file::parsed(Path::new(text), &file::ONNX, supplied)?;
                Ok(Source::Onnx(text.to_owned(), parsed))
            }
            _ => Ok(Source::Name(text.to_owned())),
        }
    }

    /// Keeps the values that an ONNX file has for these tensors, so that they are not trained.
    ///
    /// # Errors
    /// If the source is not an ONNX file, or has no such tensor.
    pub fn freeze(&mut self, names: &[String]) -> Result<()> {
        match self {
            Source::Onnx(path, file) => Ok(file.freeze(names).map_err(|error| error.at(path))?),
            Source::File(text, _) | Source::Name(text) if !names.is_empty() => {
                bail!(
                    "--freeze works only with an ONNX file, found {text}, which itself states what is trained"
                )
            }
            _ => Ok(()),
        }
    }

    /// Returns the open questions about the tensors of an ONNX file, by tensor name.
    ///
    /// # Errors
    /// If the file cannot be read again.
    pub fn notes(&self, graph: &Graph) -> Result<BTreeMap<String, String>, Error> {
        match self {
            Source::Onnx(path, file) => file.notes(graph).map_err(|error| error.at(path)),
            _ => Ok(BTreeMap::new()),
        }
    }

    /// Returns the requested sequence length, or else the model's default.
    ///
    /// # Errors
    /// If the model has sequences of another length.
    pub fn sequence(&self, asked: Option<usize>) -> Result<usize> {
        match (self, asked) {
            (Source::Name(name), asked) => Ok(asked.unwrap_or_else(|| usual_sequence(name))),
            (Source::File(_, file), Some(asked)) if asked != file.sequence => {
                bail!("--sequence {asked}: the file has sequences of {} tokens", file.sequence)
            }
            (Source::File(_, file), _) => Ok(file.sequence),
            (Source::Onnx(_, file), asked) => match (file.has_sequence()?, asked) {
                (true, Some(asked)) => Ok(asked),
                (true, None) => {
                    bail!(
                        "the file leaves the length of sequences open: give a length with --sequence"
                    )
                }
                (false, None | Some(1)) => Ok(1),
                (false, Some(asked)) => {
                    bail!(
                        "--sequence {asked}, but the file does not leave the length of sequences open"
                    )
                }
            },
        }
    }

    /// Returns the requested batch, or else the only possible batch, or else 1.
    ///
    /// # Errors
    /// If an ONNX file has inputs of unknown shapes.
    pub fn batch(&self, asked: Option<usize>) -> Result<usize> {
        match (self, asked) {
            (_, Some(asked)) => Ok(asked),
            (Source::Onnx(path, file), None) => {
                Ok(file.batch().map_err(|error| error.at(path))?.unwrap_or(1))
            }
            (_, None) => Ok(1),
        }
    }

    /// Returns the batch if the model has only one possible batch.
    ///
    /// # Errors
    /// If an ONNX file has inputs of unknown shapes.
    pub fn fixed_batch(&self) -> Result<Option<usize>> {
        match self {
            Source::Onnx(path, file) => Ok(file.batch().map_err(|error| error.at(path))?),
            _ => Ok(None),
        }
    }

    /// Returns the graph of the model for a micro-batch.
    ///
    /// # Errors
    /// If the graph cannot be built.
    pub fn graph(&self, batch: usize, sequence: usize) -> Result<Graph, Error> {
        match self {
            Source::Name(name) => named(name, batch, sequence),
            Source::File(path, file) => file.graph(batch).map_err(|error| error.at(path)),
            Source::Onnx(path, file) => file.graph(batch, sequence).map_err(|error| error.at(path)),
        }
    }

    /// Returns the model as a file.
    ///
    /// # Errors
    /// If the model does not scale with the batch.
    pub fn file(&self, name: &str, sequence: usize) -> Result<ModelFile, Error> {
        match self {
            Source::File(_, file) => Ok(file.clone()),
            _ => ModelFile::new(name, sequence, |batch| self.graph(batch, sequence)),
        }
    }

    /// Returns a source that reads an ONNX file only once and not for every micro-batch.
    ///
    /// # Errors
    /// If the model does not scale with the batch.
    pub fn read_once(self, name: &str, sequence: usize) -> Result<Source, Error> {
        match self {
            Source::Onnx(ref path, _) => {
                let path = path.clone();
                self.file(name, sequence).map(|file| Source::File(path, file))
            }
            other => Ok(other),
        }
    }
}
