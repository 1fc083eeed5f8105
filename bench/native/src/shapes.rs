//! Models as the exchange sees them: tensors in the order of backward, and when each is ready.

use anyhow::Result;
use thinwire_model::{Graph, named, usual_sequence};
use thinwire_sync::Parameter;

/// A GPT over characters, 10.7 M parameters, as in the other benchmarks.
const GPT: &str = "gpt:layers=6,width=384,heads=6,vocabulary=65,positions=64";

/// Tokens of the sequences that BERT was trained with most of the time.
const BERT_SEQUENCE: usize = 128;

/// One recurrent layer of 1,024 over 65 letters, 5.3 M parameters; the gradients of a recurrence are ready
/// when all of it is done.
const LSTM: [(&str, &[usize], f64); 7] = [
    ("head.bias", &[65], 0.1),
    ("head.weight", &[65, 1024], 1.0),
    ("lstm.bias_hh", &[4096], 60.0),
    ("lstm.bias_ih", &[4096], 0.1),
    ("lstm.weight_hh", &[4096, 1024], 30.0),
    ("lstm.weight_ih", &[4096, 256], 8.0),
    ("tokens.weight", &[65, 256], 1.0),
];

/// Four convolutions under three wide layers, as VGG; 10.9 M parameters. Most gradients are ready early.
const CNN: [(&str, &[usize], f64); 18] = [
    ("logits.bias", &[10], 0.0),
    ("logits.weight", &[10, 3072], 0.1),
    ("wide.1.bias", &[3072], 0.0),
    ("wide.1.weight", &[3072, 2560], 15.7),
    ("wide.0.bias", &[2560], 0.0),
    ("wide.0.weight", &[2560, 1024], 5.2),
    ("norm.3.bias", &[256], 0.0),
    ("norm.3.weight", &[256], 0.0),
    ("conv.3.weight", &[256, 128, 3, 3], 9.4),
    ("norm.2.bias", &[128], 0.0),
    ("norm.2.weight", &[128], 0.0),
    ("conv.2.weight", &[128, 64, 3, 3], 9.4),
    ("norm.1.bias", &[64], 0.0),
    ("norm.1.weight", &[64], 0.0),
    ("conv.1.weight", &[64, 32, 3, 3], 9.4),
    ("norm.0.bias", &[32], 0.0),
    ("norm.0.weight", &[32], 0.0),
    ("conv.0.weight", &[32, 3, 3, 3], 1.8),
];

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
    if let Some(tensors) = by_hand(model) {
        return Ok(tensors);
    }
    let name = if model == "gpt" { GPT } else { model };
    let sequence = if model.starts_with("bert") { BERT_SEQUENCE } else { usual_sequence(name) };
    Ok(of_graph(&named(name, 1, sequence)?))
}

/// Models that no graph describes: names, shapes, and shares of backward's work.
fn by_hand(model: &str) -> Option<Vec<Tensor>> {
    let tensor = |(name, shape, work): &(&str, &[usize], f64)| Tensor {
        parameter: Parameter::new(name, shape),
        work: *work,
    };
    match model {
        "lstm" => Some(LSTM.iter().map(tensor).collect()),
        "cnn" => Some(CNN.iter().map(tensor).collect()),
        "layer" => Some(vec![tensor(&("weight", &[4950, 4950], 1.0))]),
        "many" => {
            let matrix = |i: usize| tensor(&(&format!("matrices.{i}"), &[8, 8], 1.0));
            Some((0..3000).rev().map(matrix).collect())
        }
        _ => None,
    }
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
        for (model, elements) in [
            ("vgg19", 143_667_240),
            ("bert-base", 109_514_298),
            ("gpt", 10_697_088),
            ("lstm", 5_334_337),
            ("cnn", 10_911_018),
            ("layer", 24_502_500),
            ("many", 192_000),
        ] {
            let found = tensors(model).unwrap();
            assert_eq!(found.iter().map(|t| t.parameter.elements()).sum::<usize>(), elements);
            assert!(found.iter().all(|tensor| tensor.work >= 0.0));
        }
        assert!(tensors("alexnet").is_err());
    }
}
