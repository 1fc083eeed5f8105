//! `thinwire model`: what a model is made of, and what it asks for.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Subcommand;
use serde::Serialize;
use thinwire_model::{
    Block, Declaration, Graph, NAMES, Node, Operator, SPELLED, Split, Summary, Tensor, classes,
    summary,
};

use crate::figures::{binary, count, scaled};
use crate::file;
use crate::output::{print, print_json};
use crate::source::Source;
use crate::table::Table;
use crate::wrap::wrapped;

/// Look at a model that a plan can be made for.
#[derive(Subcommand)]
pub enum What {
    /// Operators, parameters, flops and activations of a model
    Show(Show),
}

/// Shows a model, each layer once.
#[derive(clap::Args)]
#[command(after_help = names())]
pub struct Show {
    /// One of the names below, or a file: model.json, model.onnx
    #[arg(value_name = "MODEL")]
    name: String,
    /// Sequences or images of a micro-batch [default: 1, or what the file is for]
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Tokens of a sequence [default: what the model is usually trained with]
    #[arg(long, value_name = "N")]
    sequence: Option<usize>,
    /// Writes the model here, for any batch, as a file that --model takes
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
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
    /// Bytes in 16 bits: of all activations, and of those that backward reads.
    activation_bytes: usize,
    kept_activation_bytes: usize,
    /// What is trained, and known numbers that are not, in the model's order.
    trained: Vec<Held<'a>>,
    frozen: Vec<Held<'a>>,
    classes: Vec<Class<'a>>,
}

/// A tensor that a rank holds from the start.
#[derive(Serialize)]
struct Held<'a> {
    name: &'a str,
    shape: &'a [usize],
}

/// A layer, and how often it is there.
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
    /// Whether the block's name and a dot go before it.
    #[serde(skip)]
    within: bool,
    operator: String,
    /// The axes that it runs over, with their lengths.
    axes: Vec<(char, usize)>,
    /// Cuts that a pin may put on a dimension of the mesh: axes that can be cut, `-` for none, and
    /// `+`, partial sums, where the operator is linear.
    cuts: String,
    /// The shape of its first output.
    shape: &'a [usize],
    flops: f64,
}

/// All names that a model can have.
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
    let source = Source::open(&show.name)?;
    let sequence = source.sequence(show.sequence).with_context(|| show.name.clone())?;
    let batch = source.batch(show.batch).with_context(|| show.name.clone())?;
    let graph = source.graph(batch, sequence)?;
    if let Some(path) = &show.output {
        file::write(path, &source.file(&show.name, sequence)?.text())?;
    }
    let report = report(show, [batch, sequence], &graph, &summary(&graph)?);
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
        trained: graph.parameters().map(|(_, tensor)| held(tensor)).collect(),
        frozen: frozen(graph).collect(),
        classes: classes(graph).iter().map(class).collect(),
    }
}

fn held(tensor: &Tensor) -> Held<'_> {
    Held { name: &tensor.name, shape: &tensor.shape }
}

/// Returns the known numbers, which nothing trains.
fn frozen(graph: &Graph) -> impl Iterator<Item = Held<'_>> {
    let known = graph.nodes.iter().filter(|node| matches!(node.operator, Operator::Constant(_)));
    known.map(|node| held(&graph.tensors[node.outputs[0]]))
}

/// An operator's name, and where it places a tensor if it does.
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
    text
}

/// Returns a node's name in pins, where the node's line does not repeat its block's name.
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
    let mut table = Table::new(["tensor", "shape", "elements"]);
    for tensor in tensors {
        let elements = tensor.shape.iter().product::<usize>();
        table.row([tensor.name.to_owned(), by(tensor.shape), count(elements as u64)]);
    }
    table
}

/// "2×3".
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

/// "1.25 TFLOP".
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
