//! Inputs of a model, as every rank of a step gets them.

use std::collections::HashMap;

use thinwire_model::{Array, TensorId};

/// Inputs of one micro-batch, whole: each rank cuts its part out of them.
pub type Inputs = HashMap<TensorId, Array>;
