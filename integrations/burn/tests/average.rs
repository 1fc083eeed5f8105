//! The averages of two ranks, threads of one process, against the mean of their own gradients.

use std::thread;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Tensor};
use thinwire::Options;
use thinwire::link::mem;
use thinwire_burn::Averager;

const RANKS: usize = 2;

/// Two linear layers, and one that is never used.
#[derive(Module, Debug)]
struct Mlp {
    hidden: Linear,
    output: Linear,
    unused: Linear,
}

impl Mlp {
    fn new(device: &Device) -> Mlp {
        Mlp {
            hidden: LinearConfig::new(5, 16).init(device),
            output: LinearConfig::new(16, 3).init(device),
            unused: LinearConfig::new(3, 2).init(device),
        }
    }

    /// Returns the gradients of a squared error for inputs of shape `[batch, 5]`.
    fn backward(&self, inputs: Tensor<2>) -> GradientsParams {
        let outputs = self.output.forward(relu(self.hidden.forward(inputs)));
        GradientsParams::from_grads(outputs.powf_scalar(2.0).mean().backward(), self)
    }
}

/// The values of all gradients of a module, parameter by parameter; zeros where there is none.
struct Values<'a> {
    gradients: &'a GradientsParams,
    values: Vec<f32>,
}

impl ModuleVisitor for Values<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = self.gradients.get(param.id);
        let gradient: Tensor<D> = gradient.unwrap_or_else(|| param.val().inner().zeros_like());
        self.values.extend(gradient.into_data().iter::<f32>());
    }
}

fn values(model: &Mlp, gradients: &GradientsParams) -> Vec<f32> {
    let mut values = Values { gradients, values: Vec::new() };
    model.visit(&mut values);
    values.values
}

/// Inputs of shape `[batch, 5]` for each rank, normally distributed.
fn inputs(device: &Device) -> Vec<Tensor<2>> {
    (0..RANKS).map(|_| Tensor::random([8, 5], Distribution::Normal(0.0, 1.0), device)).collect()
}

/// Averages one step of all ranks under `codec`; returns what each rank received.
fn average(codec: &str, model: &Mlp, inputs: &[Tensor<2>]) -> Vec<Option<Vec<f32>>> {
    let rank = |(link, inputs): (_, &Tensor<2>)| {
        let options = Options { policy: codec.parse().unwrap(), ..Options::default() };
        let mut averager = Averager::start(link, model, options).unwrap();
        let gradients = model.backward(inputs.clone());
        let averages = averager.average(0, model, gradients).unwrap();
        averages.map(|averages| values(model, &averages))
    };
    thread::scope(|scope| {
        let ranks = mem::mesh(RANKS as u32).into_iter().zip(inputs);
        let threads: Vec<_> = ranks.map(|each| scope.spawn(move || rank(each))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn averages_are_the_mean_of_all_ranks_gradients() {
    let device = Device::flex().autodiff();
    let (model, inputs) = (Mlp::new(&device), inputs(&device));
    let own = inputs.iter().map(|inputs| values(&model, &model.backward(inputs.clone())));
    let [a, b]: [Vec<f32>; RANKS] = own.collect::<Vec<_>>().try_into().unwrap();
    let mean: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a * 0.5 + b * 0.5).collect();
    assert!(mean.iter().any(|value| *value != 0.0));
    assert_eq!(average("none", &model, &inputs), vec![Some(mean); RANKS]);
}

#[test]
fn two_ranks_are_one_rank_with_the_double_batch() {
    let device = Device::flex().autodiff();
    let (model, inputs) = (Mlp::new(&device), inputs(&device));
    let whole = values(&model, &model.backward(Tensor::cat(inputs.clone(), 0)));
    let averages = average("none", &model, &inputs).swap_remove(0).unwrap();
    for (average, whole) in averages.iter().zip(&whole) {
        assert!((average - whole).abs() < 1e-6, "{average} is not {whole}");
    }
}

#[test]
fn ranks_receive_the_same_bits_from_lossy_codecs() {
    let device = Device::flex().autodiff();
    let (model, inputs) = (Mlp::new(&device), inputs(&device));
    for codec in ["int8", "powersgd:1"] {
        let averages = average(codec, &model, &inputs);
        assert!(averages[0].is_some());
        assert_eq!(averages[0], averages[1], "{codec}");
    }
}

#[test]
fn a_nan_on_one_rank_skips_the_step_on_all() {
    let device = Device::flex().autodiff();
    let (model, mut inputs) = (Mlp::new(&device), inputs(&device));
    inputs[1] = Tensor::full([8, 5], f32::NAN, &device);
    assert_eq!(average("int8", &model, &inputs), vec![None; RANKS]);
}
