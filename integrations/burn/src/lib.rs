//! Burn's gradients, averaged over ranks.
//!
//! An [`Averager`] stands between the backward pass and the optimiser of a Burn training:
//!
//! ```
//! use burn::module::Module;
//! use burn::optim::{GradientsParams, ModuleOptimizer};
//! use burn::tensor::Tensor;
//! use thinwire_burn::Averager;
//!
//! fn step<M: Module>(
//!     averager: &mut Averager,
//!     optimizer: &mut ModuleOptimizer,
//!     step: u64,
//!     model: M,
//!     loss: Tensor<1>,
//! ) -> Result<M, thinwire::Error> {
//!     let gradients = GradientsParams::from_grads(loss.backward(), &model);
//!     Ok(match averager.average(step, &model, gradients)? {
//!         Some(averages) => optimizer.step(1e-3, model, averages),
//!         // Some rank had a NaN: nothing has changed on any rank.
//!         None => model,
//!     })
//! }
//! ```
//!
//! All ranks step by the same bits, so models and optimisers that start equal stay equal.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};
use thinwire::link::Link;
use thinwire::{Error, Options, Outcome, Parameter, Synchronizer};

/// The exchange of a module's gradients with all other ranks.
#[derive(Debug)]
pub struct Averager {
    sync: Synchronizer,
    /// The index in `sync` of each trainable parameter.
    indices: HashMap<ParamId, usize>,
}

impl Averager {
    /// Forms a group over `link` for the trainable parameters of `module`.
    ///
    /// # Errors
    /// If ranks disagree on the parameters or the options, or a peer is lost.
    pub fn start<M: Module>(link: Link, module: &M, options: Options) -> Result<Averager, Error> {
        let mut found = Trainable::default();
        module.visit(&mut found);
        let sync = Synchronizer::start(link, found.parameters, options)?;
        Ok(Averager { sync, indices: found.indices })
    }

    /// Returns the average over all ranks of the gradients of one step, or `None` if any rank had a
    /// NaN or an infinity: the optimiser must not step then. All ranks pass the same `step`, higher
    /// than the last. A parameter without a gradient counts as zeros.
    ///
    /// # Errors
    /// If `step` is not higher than the last, `module` lacks a parameter, or a peer is lost.
    pub fn average<M: Module>(
        &mut self,
        step: u64,
        module: &M,
        gradients: GradientsParams,
    ) -> Result<Option<GradientsParams>, Error> {
        self.sync.begin(step)?;
        let left = self.indices.clone();
        let mut given = Overrides { sync: &mut self.sync, left, gradients, result: Ok(()) };
        module.visit(&mut given);
        given.result?;
        if self.sync.finish()? == Outcome::Skipped {
            return Ok(None);
        }
        let mut averages = Averages { averager: self, gradients: GradientsParams::new() };
        module.visit(&mut averages);
        Ok(Some(averages.gradients))
    }

    /// Returns the synchroniser, for its record, its checkpoint and its barrier.
    pub fn synchronizer(&mut self) -> &mut Synchronizer {
        &mut self.sync
    }
}

/// The trainable parameters of a module, in the order of its fields; a shared one counts once.
#[derive(Default)]
struct Trainable {
    path: Vec<String>,
    parameters: Vec<Parameter>,
    indices: HashMap<ParamId, usize>,
}

impl ModuleVisitor for Trainable {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() && !self.indices.contains_key(&param.id) {
            self.indices.insert(param.id, self.parameters.len());
            self.parameters.push(Parameter::new(&self.path.join("."), &param.shape()));
        }
    }
}

/// The gradients of one step on their way to the synchroniser.
struct Given<'a> {
    sync: &'a mut Synchronizer,
    /// Parameters that are still to be handed over.
    left: HashMap<ParamId, usize>,
    gradients: GradientsParams,
    result: Result<(), Error>,
}

impl ModuleVisitor for Given<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Frozen, or shared and already handed over.
        let Some(index) = self.left.remove(&param.id) else { return };
        let values: Vec<f32> = match self.gradients.remove::<D>(param.id) {
            Some(gradient) => gradient.into_data().try_into_vec_as().expect("gradients are floats"),
            None => vec![0.0; param.shape().num_elements()],
        };
        if self.result.is_ok() {
            self.result = self.sync.ready(index, &values);
        }
    }
}

/// The averages of one step, as gradients of Burn.
struct Averages<'a> {
    averager: &'a Averager,
    gradients: GradientsParams,
}

impl ModuleVisitor for Averages<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(&index) = self.averager.indices.get(&param.id) else { return };
        let (value, average) = (param.val(), self.averager.sync.gradient(index));
        let data = TensorData::new(average.to_vec(), value.shape());
        // Optimisers take gradients outside the graph of backward.
        let average = Tensor::<D>::from_data(data, (&value.device().inner(), value.dtype()));
        self.gradients.register(param.id, average);
    }
}
