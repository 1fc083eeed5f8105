//! Parameters as the leaves of a graph, and their gradients out of it.

use burn_tensor::{Device, Gradients, Tensor, TensorData};

use crate::{Error, Parameter, Sink};

/// A parameter as a tensor.
pub enum Leaf {
    Matrix(Tensor<2>),
    Vector(Tensor<1>),
}

/// The parameters of one segment as tensors.
pub struct Leaves {
    /// The index of the first of them in the model.
    start: usize,
    pub tensors: Vec<Leaf>,
}

impl Leaves {
    /// Copies `values` into tensors; on an autodiff device they collect gradients.
    pub fn new(
        start: usize,
        parameters: &[Parameter],
        values: &[Vec<f32>],
        device: &Device,
    ) -> Leaves {
        let leaf = |(parameter, values): (&Parameter, &Vec<f32>)| {
            let data = TensorData::new(values.clone(), parameter.shape.clone());
            if parameter.is_matrix() {
                Leaf::Matrix(tracked(Tensor::from_data(data, device)))
            } else {
                Leaf::Vector(tracked(Tensor::from_data(data, device)))
            }
        };
        Leaves { start, tensors: parameters.iter().zip(values).map(leaf).collect() }
    }

    /// Gives each parameter's gradient to `sink`.
    pub fn hand_over(self, gradients: &mut Gradients, sink: &mut Sink<'_>) -> Result<(), Error> {
        for (offset, leaf) in self.tensors.iter().enumerate() {
            let data = match leaf {
                Leaf::Matrix(tensor) => tensor.grad_remove(gradients).map(Tensor::into_data),
                Leaf::Vector(tensor) => tensor.grad_remove(gradients).map(Tensor::into_data),
            };
            let mut data = data.expect("every parameter of a segment is used by it");
            sink(self.start + offset, data.as_mut_slice().expect("gradients are f32"))?;
        }
        Ok(())
    }
}

/// The next parameter, which is a matrix.
pub fn matrix<'a>(leaves: &mut impl Iterator<Item = &'a Leaf>) -> Tensor<2> {
    match leaves.next() {
        Some(Leaf::Matrix(tensor)) => tensor.clone(),
        _ => unreachable!("the parameters of a segment are listed in another order"),
    }
}

/// The next parameter, which is a vector.
pub fn vector<'a>(leaves: &mut impl Iterator<Item = &'a Leaf>) -> Tensor<1> {
    match leaves.next() {
        Some(Leaf::Vector(tensor)) => tensor.clone(),
        _ => unreachable!("the parameters of a segment are listed in another order"),
    }
}

fn tracked<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    if tensor.is_autodiff() { tensor.require_grad() } else { tensor }
}
