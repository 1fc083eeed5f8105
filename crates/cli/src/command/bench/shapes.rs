//! Models as the exchange sees them: tensors in the order of backward, and when each is ready.

use anyhow::Result;
use thinwire_model::{Graph, named, usual_sequence};
use thinwire_sync::Parameter;

/// A GPT over characters, 10.7 M parameters, as in the other benchmarks.
const GPT: &str = "gpt:layers=6,width=384,heads=6,vocabulary=65,positions=64";

/// Tokens of the sequences that BERT was trained with most of the time.
const BERT_SEQUENCE: usize = 128;

/// A model's tensor, and backward's work until it is ready, in any unit.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Name and shape.
    pub parameter: Parameter,
    /// Flops per sample that backward does since the tensor before it was ready.
    pub work: f64,
}

/// Returns a model's tensors, those of the last layer first.
///
/// # Errors
/// If there is no such model.
pub fn tensors(model: &str) -> Result<Vec<Tensor>> {
    let name = if model == "gpt" { GPT } else { model };
    let sequence = if model.starts_with("bert") { BERT_SEQUENCE } else { usual_sequence(name) };
    Ok(of_graph(&named(name, 1, sequence)?))
}

/// The parameters of a graph as backward completes them: with the first node that reads each.
fn of_graph(graph: &Graph) -> Vec<Tensor> {
    let first = |id: usize| graph.nodes.iter().position(|node| node.inputs.contains(&id));
    let parameters: Vec<_> = graph.parameters().map(|(id, tensor)| (first(id), tensor)).collect();
    let (mut tensors, mut work) = (Vec::new(), 0.0);
    for (at, node) in graph.nodes.iter().enumerate().rev() {
        work += graph.declaration(node).flops;
        for (_, tensor) in parameters.iter().filter(|(first, _)| *first == Some(at)) {
            let parameter = Parameter::new(&tensor.name, &tensor.shape);
            tensors.push(Tensor { parameter, work: std::mem::take(&mut work) });
        }
    }
    tensors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_as_many_parameters_as_published() {
        for (model, elements) in
            [("vgg19", 143_667_240), ("bert-base", 109_514_298), ("gpt", 10_697_088)]
        {
            let found = tensors(model).unwrap();
            assert_eq!(found.iter().map(|t| t.parameter.elements()).sum::<usize>(), elements);
            assert!(found.iter().map(|tensor| tensor.work).sum::<f64>() > 1e9);
        }
        assert!(tensors("alexnet").is_err());
    }
}
