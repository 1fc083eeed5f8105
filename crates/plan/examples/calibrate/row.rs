//! Published measurements: what was trained, how, and how long a step took.

use std::error::Error;
use std::path::Path;

/// One measured step.
#[derive(Clone, Debug)]
pub struct Row {
    /// Devices, in nodes of eight.
    pub devices: usize,
    /// Sequences of a step.
    pub batch: usize,
    /// Sequences of a micro-batch, on each of `data` replicas.
    pub micro: usize,
    pub hidden: usize,
    pub heads: usize,
    pub layers: usize,
    pub sequence: usize,
    pub tensor: usize,
    pub data: usize,
    pub stages: usize,
    /// Chunks of a stage.
    pub chunks: usize,
    /// Seconds of a step.
    pub seconds: f64,
    /// Whether constants may be fitted on it.
    pub fit: bool,
}

/// What a file's columns are called.
struct Columns {
    names: [&'static str; 10],
    chunks: Option<&'static str>,
    /// Its name, and how many of it make a second.
    time: (&'static str, f64),
}

const VTRAIN: Columns = Columns {
    names: [
        "# GPUs",
        "global batch",
        "micro batch",
        "hidden size",
        "attention heads",
        "# layers",
        "sequence length",
        "tensor parallelism",
        "data parallelism",
        "pipeline parallelism",
    ],
    chunks: None,
    time: ("iteration time (ms)", 1e3),
};

const MEGATRON: Columns = Columns {
    names: [
        "gpus",
        "global_batch",
        "micro_batch",
        "hidden",
        "heads",
        "layers",
        "seq",
        "tp",
        "dp",
        "pp",
    ],
    chunks: Some("virtual_stages"),
    time: ("iter_s_derived", 1.0),
};

/// vTrain's measurements.
pub fn vtrain(folder: &Path, file: &str) -> Result<Vec<Row>, Box<dyn Error>> {
    read(folder, file, &VTRAIN)
}

/// Those of Megatron's paper.
pub fn megatron(folder: &Path, file: &str) -> Result<Vec<Row>, Box<dyn Error>> {
    read(folder, file, &MEGATRON)
}

fn read(folder: &Path, file: &str, columns: &Columns) -> Result<Vec<Row>, Box<dyn Error>> {
    let path = folder.join(file);
    let text =
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().ok_or("no header")?.split(',').collect();
    let place = |name: &str| {
        let found = header.iter().position(|column| *column == name);
        found.ok_or_else(|| format!("{file} has no column '{name}'"))
    };
    let places = columns.names.iter().map(|name| place(name)).collect::<Result<Vec<_>, _>>()?;
    let chunks = columns.chunks.map(place).transpose()?;
    let (time, role) = (place(columns.time.0)?, place("role")?);
    let row = |line: &str| -> Result<Row, Box<dyn Error>> {
        let fields: Vec<&str> = line.split(',').collect();
        let numbers = places.iter().map(|place| fields[*place].parse::<usize>());
        let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
        let [devices, batch, micro, hidden, heads, layers, sequence, tensor, data, stages] =
            numbers[..].try_into()?;
        let chunks = chunks.map_or(Ok(1), |place| fields[place].parse())?;
        let seconds = fields[time].parse::<f64>()? / columns.time.1;
        let fit = fields[role] == "fit";
        Ok(Row {
            devices,
            batch,
            micro,
            hidden,
            heads,
            layers,
            sequence,
            tensor,
            data,
            stages,
            chunks,
            seconds,
            fit,
        })
    };
    lines.map(row).collect()
}
