//! Thinwire for Python: the extension module `thinwire._core`, the operator that MindSpore loads from the
//! same file, and the handlers that XLA calls.
//!
//! There is no algorithm here. Tensors are passed as address, length and dtype, never as a framework's
//! object. The GIL is released around everything that can block, and every wait reacts to Ctrl-C.
//! `python/thinwire/_core.pyi` documents every class for Python users.
#![deny(unsafe_code)]

mod arguments;
mod averager;
mod background;
mod calls;
mod coordinator;
mod device;
mod elastic_steps;
mod epoch;
mod error;
mod graph;
mod graph_file;
mod group;
mod lifetime;
mod membership;
mod memory;
mod metrics;
mod operator;
mod options;
mod policies;
mod registry;
mod row_source;
mod row_values;
mod scatter;
mod server;
mod server_client;
mod shared;
mod state;
mod store;
mod synchronizer;
mod wait;
mod xla;

use pyo3::prelude::*;

/// The core of Thinwire: groups of ranks, synchronisers of gradients.
#[pymodule]
mod _core {
    use std::ffi::OsString;

    use pyo3::prelude::*;

    use crate::error::{Error, InvalidError, NoRankError, PeerError};

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's own name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    use crate::averager::{Averager, partner};
    #[pymodule_export]
    use crate::background::settle;
    #[pymodule_export]
    use crate::coordinator::Coordinator;
    #[pymodule_export]
    use crate::device::Cuda;
    #[pymodule_export]
    use crate::elastic_steps::{ElasticSteps, EpochEntry};
    #[pymodule_export]
    use crate::epoch::Epoch;
    #[pymodule_export]
    use crate::graph::{Graph, GraphBatch, GraphLoader};
    #[pymodule_export]
    use crate::graph_file::GraphFile;
    #[pymodule_export]
    use crate::group::{Group, close_all};
    #[pymodule_export]
    use crate::membership::Membership;
    #[pymodule_export]
    use crate::options::{check, codec_name, measure_codecs};
    #[pymodule_export]
    use crate::policies::{Policies, Sketch};
    #[pymodule_export]
    use crate::row_source::{RowServer, RowSource};
    #[pymodule_export]
    use crate::row_values::{decode_rows, encode_rows};
    #[pymodule_export]
    use crate::scatter::Scatter;
    #[pymodule_export]
    use crate::server::Server;
    #[pymodule_export]
    use crate::server_client::ServerClient;
    #[pymodule_export]
    use crate::state::{check_state, reshard};
    #[pymodule_export]
    use crate::store::Store;
    #[pymodule_export]
    use crate::synchronizer::Synchronizer;
    #[pymodule_export]
    use crate::xla::{fail_at_exit, xla_handlers};

    /// Finds the exceptions while there certainly is an interpreter.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        module.add("Error", py.get_type::<Error>())?;
        module.add("InvalidError", py.get_type::<InvalidError>())?;
        module.add("NoRankError", py.get_type::<NoRankError>())?;
        module.add("PeerError", py.get_type::<PeerError>())
    }

    /// Runs the command `thinwire` for a script or a module, and returns the exit code.
    #[pyfunction]
    #[pyo3(signature = (words, arguments))]
    fn command(py: Python<'_>, words: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
        let script = thinwire_cli::Script { words, arguments };
        py.detach(|| thinwire_cli::main_of(script))
    }

    /// Returns the number of updates between the two variances of Adam that `is_settled` compares.
    #[pyfunction]
    fn settling_updates(beta2: f64) -> usize {
        thinwire_update::settling_updates(beta2)
    }

    /// Returns whether the sum of all variances has settled from `before` to `now`.
    #[pyfunction]
    fn is_settled(before: f64, now: f64) -> bool {
        thinwire_update::is_settled(before, now)
    }

    /// Returns descriptor and inode of every socket that this process, or its parent before a fork, has opened.
    #[pyfunction]
    fn sockets() -> Vec<(i32, u64)> {
        thinwire_link::forks::sockets().collect()
    }
}
