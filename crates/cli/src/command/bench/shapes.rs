//! Models as the exchange sees them: tensors in the order of backward, and when each is ready.

use std::fmt;
use std::str::FromStr;

use thinwire_sync::Parameter;

/// A model whose tensors are known, not its arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// VGG19 for 1000 classes: 143.7 M parameters, most of them in one layer.
    Vgg19,
    /// BERT base with a pooler: 109.5 M parameters in 199 tensors.
    BertBase,
    /// GPT over characters, 6 layers of width 384: 10.7 M parameters, as in the other benchmarks.
    Gpt,
}

/// A model's tensor, and backward's work until it is ready, in any unit.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Name and shape.
    pub parameter: Parameter,
    /// Multiplications per sample that backward does for it.
    pub work: f64,
}

/// A name that is no model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownModel(String);

impl fmt::Display for UnknownModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown model '{}', expected vgg19, bert-base or gpt", self.0)
    }
}

impl std::error::Error for UnknownModel {}

impl FromStr for Model {
    type Err = UnknownModel;

    fn from_str(name: &str) -> Result<Model, UnknownModel> {
        match name {
            "vgg19" => Ok(Model::Vgg19),
            "bert-base" => Ok(Model::BertBase),
            "gpt" => Ok(Model::Gpt),
            _ => Err(UnknownModel(name.to_owned())),
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Model::Vgg19 => "vgg19",
            Model::BertBase => "bert-base",
            Model::Gpt => "gpt",
        })
    }
}

impl Model {
    /// Returns the model's tensors, those of the last layer first.
    pub fn tensors(self) -> Vec<Tensor> {
        let mut tensors = match self {
            Model::Vgg19 => vgg19(),
            Model::BertBase => bert_base(),
            Model::Gpt => gpt(),
        };
        tensors.reverse();
        tensors
    }
}

/// A weight and its bias, which is ready at the same time.
fn layer(name: &str, shape: &[usize], places: usize) -> [Tensor; 2] {
    let elements: usize = shape.iter().product();
    let tensor = |suffix: &str, shape: &[usize], work: f64| Tensor {
        parameter: Parameter::new(&format!("{name}.{suffix}"), shape),
        work,
    };
    [tensor("weight", shape, (elements * places) as f64), tensor("bias", &shape[..1], 0.0)]
}

/// Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition",
/// configuration E, pictures of 224 x 224.
fn vgg19() -> Vec<Tensor> {
    let mut tensors = Vec::new();
    let (mut inputs, mut side) = (3, 224);
    for (width, count) in [(64, 2), (128, 2), (256, 4), (512, 4), (512, 4)] {
        for _ in 0..count {
            let name = format!("convolution.{}", tensors.len() / 2);
            tensors.extend(layer(&name, &[width, inputs, 3, 3], side * side));
            inputs = width;
        }
        side /= 2;
    }
    for (outputs, inputs) in [(4096, 25088), (4096, 4096), (1000, 4096)] {
        let name = format!("linear.{}", tensors.len() / 2);
        tensors.extend(layer(&name, &[outputs, inputs], 1));
    }
    tensors
}

/// Devlin et al., "BERT: pre-training of deep bidirectional transformers for language
/// understanding", base, sequences of 128.
fn bert_base() -> Vec<Tensor> {
    const WIDTH: usize = 768;
    const LENGTH: usize = 128;
    let norm = |name: &str| layer(name, &[WIDTH], 0);
    let mut tensors: Vec<Tensor> = [("word", 30_522), ("place", 512), ("kind", 2)]
        .into_iter()
        .map(|(name, rows)| layer(&format!("embedding.{name}"), &[rows, WIDTH], 0)[0].clone())
        .collect();
    tensors.extend(norm("embedding.norm"));
    for block in 0..12 {
        for name in ["query", "key", "value", "output"] {
            tensors.extend(layer(&format!("block.{block}.{name}"), &[WIDTH, WIDTH], LENGTH));
        }
        tensors.extend(norm(&format!("block.{block}.norm.0")));
        tensors.extend(layer(&format!("block.{block}.up"), &[4 * WIDTH, WIDTH], LENGTH));
        tensors.extend(layer(&format!("block.{block}.down"), &[WIDTH, 4 * WIDTH], LENGTH));
        tensors.extend(norm(&format!("block.{block}.norm.1")));
    }
    tensors.extend(layer("pooler", &[WIDTH, WIDTH], 1));
    tensors
}

fn gpt() -> Vec<Tensor> {
    const WIDTH: usize = 384;
    const LENGTH: usize = 64;
    let norm = |name: &str| layer(name, &[WIDTH], 0);
    let table = |name: &str, rows: usize| layer(name, &[rows, WIDTH], 0)[0].clone();
    let mut tensors = vec![table("embedding.letter", 65), table("embedding.place", LENGTH)];
    for block in 0..6 {
        let name = |part: &str| format!("block.{block}.{part}");
        tensors.extend(norm(&name("norm.0")));
        tensors.extend(layer(&name("attend"), &[3 * WIDTH, WIDTH], LENGTH));
        tensors.extend(layer(&name("project"), &[WIDTH, WIDTH], LENGTH));
        tensors.extend(norm(&name("norm.1")));
        tensors.extend(layer(&name("up"), &[4 * WIDTH, WIDTH], LENGTH));
        tensors.extend(layer(&name("down"), &[WIDTH, 4 * WIDTH], LENGTH));
    }
    tensors.extend(norm("norm"));
    tensors.extend(layer("head", &[65, WIDTH], LENGTH));
    tensors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_as_many_parameters_as_published() {
        for (model, tensors, elements) in [
            (Model::Vgg19, 38, 143_667_240),
            (Model::BertBase, 199, 109_482_240),
            (Model::Gpt, 78, 10_722_113),
        ] {
            let found = model.tensors();
            assert_eq!(found.len(), tensors);
            assert_eq!(found.iter().map(|t| t.parameter.elements()).sum::<usize>(), elements);
            assert_eq!(model.to_string().parse(), Ok(model));
        }
        let error = "alexnet".parse::<Model>().unwrap_err().to_string();
        assert_eq!(error, "unknown model 'alexnet', expected vgg19, bert-base or gpt");
    }
}
