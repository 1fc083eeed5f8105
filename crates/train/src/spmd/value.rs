//! A tensor as a rank holds it: flat numbers and a shape, on Burn.
//!
//! Indices are numbers too: below 2^24, where f32 still tells all whole numbers apart.

use burn_tensor::{Device, Tensor, TensorData};
use thinwire_model::Array;

/// A local tensor.
#[derive(Clone, Debug)]
pub struct Value {
    shape: Vec<usize>,
    flat: Tensor<1>,
}

impl Value {
    /// A tensor of these numbers, in the order of rows.
    ///
    /// # Panics
    /// If there are more or fewer than the shape has places.
    pub fn new(shape: &[usize], values: Vec<f32>, device: &Device) -> Value {
        let length = values.len();
        assert_eq!(shape.iter().product::<usize>(), length, "values for shape {shape:?}");
        let flat = Tensor::from_data(TensorData::new(values, [length]), device);
        Value { shape: shape.to_vec(), flat }
    }

    /// What a tensor of Burn holds, under another shape.
    pub fn of<const D: usize>(shape: &[usize], tensor: Tensor<D>) -> Value {
        let length: usize = shape.iter().product();
        Value { shape: shape.to_vec(), flat: tensor.reshape([length]) }
    }

    /// The lengths of its dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The product of all dimensions but the last, and the last.
    pub fn rows(&self) -> [usize; 2] {
        let last = self.shape.last().copied().unwrap_or(1);
        [self.elements() / last.max(1), last]
    }

    /// Under a shape with as many elements.
    pub fn view<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        self.flat.clone().reshape(shape)
    }

    /// In one dimension.
    pub fn flat(&self) -> Tensor<1> {
        self.flat.clone()
    }

    /// In one dimension, and whoever changes it may do so in place.
    pub fn into_flat(self) -> Tensor<1> {
        self.flat
    }

    /// The same elements under another shape.
    pub fn reshaped(&self, shape: &[usize]) -> Value {
        Value { shape: shape.to_vec(), flat: self.flat.clone() }
    }

    /// The device that it is on.
    pub fn device(&self) -> Device {
        self.flat.device()
    }

    /// The numbers.
    pub fn floats(&self) -> Vec<f32> {
        self.flat.clone().into_data().try_into_vec().expect("values are f32")
    }

    /// The numbers, which are copied only if somebody else holds them too.
    pub fn into_floats(self) -> Vec<f32> {
        self.flat.into_data().try_into_vec().expect("values are f32")
    }

    /// The same with its numbers changed; in place, if nobody else holds it.
    pub fn edited(self, edit: impl FnOnce(&mut [f32])) -> Value {
        Value { shape: self.shape, flat: edited(self.flat, edit) }
    }

    /// The same with other numbers; in place, if nobody else holds it.
    pub fn mapped(self, map: impl FnOnce(Tensor<1>) -> Tensor<1>) -> Value {
        Value { shape: self.shape, flat: map(self.flat) }
    }

    /// The numbers as the reference has them.
    pub fn array(&self) -> Array {
        Array::new(&self.shape[..], self.floats().into_iter().map(f64::from).collect::<Vec<_>>())
    }

    /// The reference's numbers.
    pub fn from_array(array: &Array, device: &Device) -> Value {
        let values = array.values().iter().map(|value| *value as f32).collect();
        Value::new(array.shape(), values, device)
    }
}

/// A tensor with its numbers changed; in place, if nobody else holds it.
pub fn edited<const D: usize>(tensor: Tensor<D>, edit: impl FnOnce(&mut [f32])) -> Tensor<D> {
    let device = tensor.device();
    let mut data = tensor.into_data();
    edit(data.as_mut_slice().expect("values are f32"));
    Tensor::from_data(data, &device)
}
