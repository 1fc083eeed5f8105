//! Names in a file, and unique names of nodes, since files may use a name several times.

use std::collections::{HashMap, HashSet};

use onnx_rs::ast::{Dimension, Graph as OnnxGraph, ValueInfo};
use thinwire_model::{Error, Graph, Kind, check_distinct, check_name};

use crate::input;

/// Refuses names that could control a terminal, two inputs with the same name, and two attributes of a node
/// with the same name.
pub(crate) fn check(graph: &OnnxGraph<'_>) -> Result<(), Error> {
    graph.initializer.iter().try_for_each(|tensor| check_name(tensor.name()))?;
    graph.input.iter().chain(&graph.output).try_for_each(check_described)?;
    check_distinct(Kind::File, "inputs", graph.input.iter().map(|input| input.name))?;
    for node in &graph.node {
        let names = [node.name, node.domain, node.op_type.as_str()];
        names
            .iter()
            .chain(&node.input)
            .chain(&node.output)
            .try_for_each(|name| check_name(name))?;
        let attributes = node.attribute.iter().map(|attribute| attribute.name);
        attributes.clone().try_for_each(check_name)?;
        check_distinct(Kind::File, "attributes", attributes)
            .map_err(|error| error.at(node.name))?;
    }
    Ok(())
}

fn check_described(value: &ValueInfo<'_>) -> Result<(), Error> {
    check_name(value.name)?;
    for dimension in input::dimensions(value).unwrap_or_default() {
        if let Dimension::Param(name) = dimension {
            check_name(name)?;
        }
    }
    Ok(())
}

/// Adds a number to the name of each node whose name is taken already.
pub(crate) fn distinguish(graph: &mut Graph) {
    let mut names: HashSet<String> = graph.nodes.iter().map(|node| node.name.clone()).collect();
    let mut counts: HashMap<String, usize> = HashMap::new();
    for node in &mut graph.nodes {
        let count = counts.entry(node.name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            let mut numbered = format!("{}.{count}", node.name);
            while !names.insert(numbered.clone()) {
                *count += 1;
                numbered = format!("{}.{count}", node.name);
            }
            node.name = numbered;
        }
    }
}
