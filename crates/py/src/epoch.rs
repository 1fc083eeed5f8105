//! An epoch of an elastic job for Python: the ranks of one version of the group, on one communication
//! thread, which a synchroniser shares.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use thinwire_collective::{Stop, all_gather_bytes};
use thinwire_link::Link;
use thinwire_sync::Channel;
use thinwire_wire::{Rank, World};

use crate::arguments;
use crate::error::Failure;
use crate::group::Group;
use crate::lifetime::{Context, Held, Member};
use crate::memory::Memory;
use crate::wait;

/// Ranks that train together until membership changes.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct Epoch {
    held: Held<Channel>,
    world: World,
    number: u32,
    state_sources: u32,
}

impl Epoch {
    /// Returns the epoch with this number over a link; the first `state_sources` ranks have the newest
    /// state.
    pub(crate) fn new(context: Arc<Context>, link: Link, number: u32, state_sources: u32) -> Epoch {
        let group = thinwire_collective::Group::new(link).with_timeout(context.timeout);
        let (world, stop) = (group.world(), group.stop());
        let held = Held::new(context, stop, Channel::new(group));
        Epoch { held, world, number, state_sources }
    }

    /// Returns this rank and the number of ranks of the epoch.
    pub(crate) fn place(&self) -> World {
        self.world
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.held.context
    }

    /// Returns the channel of the communication thread, for a synchroniser.
    pub(crate) fn channel(&self) -> Result<Channel, Failure> {
        self.held.context.lifetime.check()?;
        self.held.cell.with("epoch", |channel| channel.clone())
    }

    /// Returns the handle that ends its communication, from any thread.
    pub(crate) fn stop(&self) -> Stop {
        self.held.cell.stop.clone()
    }

    /// Makes a collective call and waits for it.
    fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(Channel) -> Result<T, Failure> + Send + 'static,
    ) -> PyResult<T> {
        let ranks = self.channel()?;
        self.held.wait(py, move || call(ranks))
    }
}

#[pymethods]
impl Epoch {
    /// Returns ranks of a group as an epoch, over connections of its own.
    #[staticmethod]
    #[pyo3(signature = (group, number = 1, state_sources = 1))]
    fn of(py: Python<'_>, group: &Group, number: i128, state_sources: i128) -> PyResult<Epoch> {
        let (number, state_sources) = (
            arguments::number("number", number)?,
            arguments::number("state_sources", state_sources)?,
        );
        let context = Arc::clone(group.context());
        let connect = group.connect("epoch".to_owned())?;
        wait::for_work(py, move || Ok(Epoch::new(context, connect()?, number, state_sources)))
    }

    #[getter]
    fn number(&self) -> u32 {
        self.number
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.world.rank().0
    }

    #[getter]
    fn world(&self) -> usize {
        self.world.size()
    }

    #[getter]
    pub(crate) fn state_sources(&self) -> u32 {
        self.state_sources
    }

    /// Sends `bytes` at `address` of the first `state_sources` ranks, which must be the same, to all
    /// others.
    fn hand_over<'py>(
        &self,
        py: Python<'py>,
        state_sources: i128,
        address: usize,
        bytes: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let state_sources = arguments::number("state_sources", state_sources)?;
        let holds = self.world.rank().0 < state_sources;
        let state = holds.then(|| Memory::new(address, bytes)).transpose()?;
        let state = state.map(|memory| memory.bytes().to_vec());
        let state = self.call(py, move |ranks| Ok(ranks.hand_over(state_sources, state)?))?;
        Ok(PyBytes::new(py, &state))
    }

    /// Sends `mine` of rank `source` to rank `target`. These two ranks call it, and both get the bytes.
    fn pass_on<'py>(
        &self,
        py: Python<'py>,
        source: i128,
        target: i128,
        mine: Vec<u8>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (source, target) =
            (arguments::number("source", source)?, arguments::number("target", target)?);
        let (me, world) = (self.world.rank().0, self.world.size());
        let given = (me == source).then_some(mine);
        let found = self.call(py, move |ranks| {
            let pair = ranks.among(&[Rank(source), Rank(target)]).ok_or_else(|| {
                Failure::invalid(format!(
                    "ranks {source} and {target} of {world}, expected one to be rank {me}"
                ))
            })?;
            Ok(pair.hand_over(1, given)?)
        })?;
        Ok(PyBytes::new(py, &found))
    }

    /// Returns the bytes of every rank, in rank order, of any lengths.
    fn gather<'py>(&self, py: Python<'py>, mine: Vec<u8>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let gather = move |group: &mut thinwire_collective::Group| all_gather_bytes(group, &mine);
        let all = self.call(py, move |ranks| Ok(ranks.driver().call(gather)?))?;
        Ok(all.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// Ends the epoch on all its ranks.
    fn abort(&self, reason: &str) -> PyResult<()> {
        Ok(self.held.abort(reason)?)
    }

    /// Says goodbye to the other ranks, once no synchroniser uses the epoch.
    fn close(&self, py: Python<'_>) {
        if !self.held.context.lifetime.is_forked() {
            py.detach(|| self.held.cell.close());
        }
    }
}
