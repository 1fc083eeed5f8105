//! `thinwire model`: shows the structure and the requirements of a model.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Subcommand;
use serde::Serialize;
use thinwire_model::{
    Block, Declaration, Graph, NAMES, Node, Operator, SPELLED, Split, Summary, Tensor, classes,
    summary,
};
use thinwire_report::Table;
use thinwire_report::figures::{binary, count, scaled};

use crate::file;
use crate::output::{print, print_json};
use crate::source::Source;
use crate::word_wrap::wrapped;

/// Look at a model that a plan can be made for.
#[derive(Subcommand)]
pub enum What {
    /// Show the operators, parameters, flops and activations of a model
    Show(Show),
}

/// Show a model, each layer once.
#[derive(clap::Args)]
#[command(after_help = names())]
pub struct Show {
    /// One of the names below, or a file: model.json, model.onnx
    #[arg(value_name = "MODEL")]
    name: String,
    /// Sequences or images of the batch [default: 1]
    ///
    /// The default for a file is the number that it was made for.
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Tokens of a sequence [default: the model's usual number]
    #[arg(long, value_name = "N")]
    sequence: Option<usize>,
    /// File to write the model to, for use with --model
    ///
    /// The file can be used with any batch.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Tensors of an ONNX file that are not trained
    ///
    /// They keep their values. An ONNX file does not distinguish such tensors, like torch's buffers, from
    /// parameters. The file of --output records this choice.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    freeze: Vec<String>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    batch: usize,
    sequence: usize,
    parameters: usize,
    forward_flops: f64,
    backward_flops: f64,
    /// Bytes of all activations, and of the activations that the backward pass reads, with 16 bits per
    /// element.
    activation_bytes: usize,
    kept_activation_bytes: usize,
    /// Trained tensors, and known numbers that are not trained, in the model's order.
    trained: Vec<Held<'a>>,
    frozen: Vec<Held<'a>>,
    /// Real numbers of an ONNX file that are not part of the model.
    left_out: Vec<LeftOut<'a>>,
    classes: Vec<Class<'a>>,
}

/// A tensor that a rank holds from the start.
#[derive(Serialize)]
struct Held<'a> {
    name: &'a str,
    shape: &'a [usize],
    /// Open questions about the tensor in an ONNX file, or the reason why it is not trained.
    note: Option<&'a str>,
}

/// A tensor of a file that no rank holds.
#[derive(Serialize)]
struct LeftOut<'a> {
    name: &'a str,
    note: &'a str,
}

/// A layer with the number of its occurrences.
#[derive(Serialize)]
struct Class<'a> {
    /// First and last block of the run.
    first: &'a str,
    last: &'a str,
    blocks: usize,
    nodes: Vec<Line<'a>>,
}

#[derive(Serialize)]
struct Line<'a> {
    /// Name of the node within the block.
    name: &'a str,
    /// Whether the full name begins with the block's name and a dot.
    #[serde(skip)]
    within: bool,
    operator: String,
    /// The axes of the operator, with their lengths.
    axes: Vec<(char, usize)>,
    /// Cuts that a pin may put on a dimension of the mesh: each axis that can be cut, `-` for no cut, and `+`
    /// for partial sums if the operator is linear.
    cuts: String,
    /// The shape of its first output.
    shape: &'a [usize],
    flops: f64,
}

/// Returns all names of models.
fn names() -> String {
    let (names, spelled) = (NAMES.join(", "), SPELLED.join("\n  "));
    wrapped(&format!("Models:\n  {names}\nOf any size:\n  {spelled}\n"))
}

/// Bytes of an element of 16 bits.
const ELEMENT_BYTES: usize = 2;

/// Shows a model.
///
/// # Errors
/// If there is no such model, the file cannot be written, or standard output is closed.
pub fn run(what: &What) -> Result<u8> {
    let What::Show(show) = what;
    file::ensure_place(show.output.as_deref(), "the model", "--output")?;
    let mut source = Source::open(&show.name)?;
    source.freeze(&show.freeze)?;
    let sequence = source.sequence(show.sequence).with_context(|| show.name.clone())?;
    let batch = source.batch(show.batch).with_context(|| show.name.clone())?;
    let graph = source.graph(batch, sequence)?;
    if let Some(path) = &show.output {
        file::write(path, &source.file(&show.name, sequence)?.text())?;
    }
    let notes = source.notes(&graph)?;
    let report = report(show, [batch, sequence], &graph, &notes, &summary(&graph)?);
    match show.json {
        true => print_json(&report)?,
        false => print(text(&report))?,
    }
    Ok(0)
}

fn report<'a>(
    show: &'a Show,
    [batch, sequence]: [usize; 2],
    graph: &'a Graph,
    notes: &'a BTreeMap<String, String>,
    summary: &Summary,
) -> Report<'a> {
    let class = |class: &thinwire_model::Class| {
        let (first, last) = (class.blocks[0], class.blocks[class.blocks.len() - 1]);
        let block = &graph.blocks[first];
        let nodes = graph.nodes[block.nodes.clone()].iter();
        Class {
            first: &block.name,
            last: &graph.blocks[last].name,
            blocks: class.blocks.len(),
            nodes: nodes.map(|node| line(graph, block, node)).collect(),
        }
    };
    Report {
        model: &show.name,
        batch,
        sequence,
        parameters: summary.parameters,
        forward_flops: summary.forward_flops,
        backward_flops: summary.backward_flops,
        activation_bytes: ELEMENT_BYTES * summary.activations,
        kept_activation_bytes: ELEMENT_BYTES * summary.kept_activations,
        trained: graph.parameters().map(|(_, tensor)| held(tensor, notes)).collect(),
        frozen: frozen(graph, notes).collect(),
        left_out: left_out(graph, notes),
        classes: classes(graph).iter().map(class).collect(),
    }
}

fn held<'a>(tensor: &'a Tensor, notes: &'a BTreeMap<String, String>) -> Held<'a> {
    let note = notes.get(&tensor.name).map(String::as_str);
    Held { name: &tensor.name, shape: &tensor.shape, note }
}

/// Returns the tensors of the file that the graph lacks, with the reason.
fn left_out<'a>(graph: &Graph, notes: &'a BTreeMap<String, String>) -> Vec<LeftOut<'a>> {
    let has = |name: &str| graph.tensors.iter().any(|tensor| tensor.name == name);
    let left = notes.iter().filter(|(name, _)| !has(name));
    left.map(|(name, note)| LeftOut { name, note }).collect()
}

/// Returns the known numbers, which are not trained.
fn frozen<'a>(
    graph: &'a Graph,
    notes: &'a BTreeMap<String, String>,
) -> impl Iterator<Item = Held<'a>> {
    let output = |node: &'a Node| &graph.tensors[node.outputs[0]];
    let known = graph.nodes.iter().filter(move |node| match node.operator {
        Operator::Constant(_) => true,
        Operator::Fill(_) => notes.contains_key(&output(node).name),
        _ => false,
    });
    known.map(move |node| held(output(node), notes))
}

/// Returns the operator's name, and the place of a tensor if it moves one.
fn operator(operator: &Operator) -> String {
    let cuts = match operator {
        Operator::Place(place) => place.cuts.iter().map(|(dim, cut)| format!(" {dim}={cut}")),
        _ => return operator.name().to_owned(),
    };
    format!("{}{}", operator.name(), cuts.collect::<String>())
}

fn line<'a>(graph: &'a Graph, block: &Block, node: &'a Node) -> Line<'a> {
    let declaration = graph.declaration(node);
    let within = node.name.strip_prefix(&block.name).and_then(|name| name.strip_prefix('.'));
    Line {
        name: within.unwrap_or(&node.name),
        within: within.is_some(),
        operator: operator(&node.operator),
        axes: declaration.axes.iter().map(|axis| (axis.name, axis.length)).collect(),
        cuts: cuts(&declaration),
        shape: &graph.tensors[node.outputs[0]].shape,
        flops: declaration.flops,
    }
}

fn cuts(declaration: &Declaration) -> String {
    let cut = declaration.axes.iter().filter(|axis| axis.split != Split::Never);
    let sums = if declaration.linear { "+" } else { "" };
    cut.map(|axis| axis.name).chain(['-']).chain(sums.chars()).collect()
}

fn text(report: &Report<'_>) -> String {
    let mut text = format!(
        "{}, a micro-batch of {} × {}\nparameters: {}\nflops: {} forward, {} backward\n\
         activations in 16 bits: {}, of which {} are kept for backward\n\
         axes in brackets cannot be cut{}\n",
        report.model,
        report.batch,
        report.sequence,
        count(report.parameters as u64),
        flops(report.forward_flops),
        flops(report.backward_flops),
        binary(report.activation_bytes as f64),
        binary(report.kept_activation_bytes as f64),
        pinned(report),
    );
    for class in &report.classes {
        text += &format!("\n{}\n{}", headline(class), table(class));
    }
    for (title, tensors) in [("parameters", &report.trained), ("frozen", &report.frozen)] {
        if !tensors.is_empty() {
            text += &format!("\n{title}\n{}", listed(tensors));
        }
    }
    if !report.left_out.is_empty() {
        let mut table = Table::new(["tensor", "note"]);
        report.left_out.iter().for_each(|it| table.row([it.name, it.note]));
        text += &format!("\nin the file alone\n{table}");
    }
    text
}

/// Returns a note with the full name of a node as pins need it, if a line shows the name without the block's
/// name.
fn pinned(report: &Report<'_>) -> String {
    let within = |class: &Class<'_>| {
        let node = class.nodes.iter().find(|line| line.within)?;
        let (block, name) = (class.first, node.name);
        Some(format!("; pins call {name} of {block} '{block}.{name}'"))
    };
    report.classes.iter().find_map(within).unwrap_or_default()
}

fn headline(class: &Class<'_>) -> String {
    match class.blocks {
        1 => class.first.to_owned(),
        blocks => format!("{blocks} × {} … {}", class.first, class.last),
    }
}

fn listed(tensors: &[Held<'_>]) -> Table {
    let noted = tensors.iter().any(|tensor| tensor.note.is_some());
    let columns = if noted { 4 } else { 3 };
    let mut table = Table::new(["tensor", "shape", "elements", "note"].into_iter().take(columns));
    for tensor in tensors {
        let elements = count(tensor.shape.iter().product::<usize>() as u64);
        let note = tensor.note.unwrap_or_default().to_owned();
        let row = [tensor.name.to_owned(), by(tensor.shape), elements, note];
        table.row(row.into_iter().take(columns));
    }
    table
}

/// Returns a shape as text, such as "2×3".
fn by(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join("×")
}

fn table(class: &Class<'_>) -> Table {
    let mut table = Table::new(["node", "operator", "axes", "output", "flops"]);
    for line in &class.nodes {
        let axis = |(name, length): &(char, usize)| match line.cuts.contains(*name) {
            true => format!("{name}={length}"),
            false => format!("({name}={length})"),
        };
        let axes: Vec<String> = line.axes.iter().map(axis).collect();
        let (name, operator) = (line.name.to_owned(), line.operator.clone());
        table.row([name, operator, axes.join(" "), by(line.shape), flops(line.flops)]);
    }
    table
}

/// Returns a number of flops as text, such as "1.25 TFLOP".
fn flops(flops: f64) -> String {
    let scales = [
        (1e15, "PFLOP"),
        (1e12, "TFLOP"),
        (1e9, "GFLOP"),
        (1e6, "MFLOP"),
        (1e3, "kFLOP"),
        (1.0, "FLOP"),
    ];
    scaled(flops, &scales)
}
