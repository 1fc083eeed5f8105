//! Trained rows of vertices on servers: their flags, and the job of the ranks that use them.

use anyhow::{Context, Error, Result, anyhow};
use thinwire_job::Place;
use thinwire_job::elastic::{JobAddress, Presence};
use thinwire_link::Link;
use thinwire_member::{CoordinatorMode, Options};
use thinwire_sync::Live;
use thinwire_train::gnn::{ROWS, ServedRows};
use thinwire_update::{AdamOptions, Optimizer, Rule};
use thinwire_wire::WORLD_SIZE_MAX;

use super::task::Learned;
use crate::failure::hinted;
use crate::link;
use crate::place;
use crate::ranks;
use crate::size::{ElasticFlags, Size};
use crate::training::{self, ServerFlags, ServerMode, StoreFlags};

/// Flags of rows on servers.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
#[command(next_help_heading = "Rows on servers")]
pub struct Flags {
    /// Servers of the rows of --features learned:WIDTH
    ///
    /// They are started on this machine (256 at most) unless THINWIRE_MEMBER=new makes this process a rank that
    /// joins. Without servers, every rank keeps all rows.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    servers: Option<u32>,
    #[command(flatten)]
    store: StoreFlags,
}

impl Flags {
    /// Returns whether any of these flags is given.
    pub fn are_given(&self) -> bool {
        self.servers.is_some() || self.store.flag().is_some()
    }

    /// Returns the settings of rows on servers.
    ///
    /// # Errors
    /// If a flag needs one that is missing, or flags contradict each other.
    pub fn resolve(
        &self,
        learned: Option<Learned>,
        ranks: u32,
        learning_rate: f32,
    ) -> Result<ServerMode> {
        let Some(servers) = self.servers else {
            let flag = self.store.flag().unwrap_or_default();
            return Err(hinted(
                anyhow!("{flag} needs servers"),
                format!("add --servers N, or leave {flag} out"),
            ));
        };
        if learned.is_none() {
            let error = anyhow!("--servers {servers} has no effect without rows that are trained");
            let hint = "add --features learned:WIDTH, or leave --servers out: features of the graph file need no servers";
            return Err(hinted(error, hint));
        }
        let optimizer = Optimizer { rule: Rule::LazyAdam(AdamOptions::default()), learning_rate };
        let flags = ServerFlags::of_parameter(ROWS, optimizer, servers, self.store.clone());
        flags
            .resolve(Size::Fixed(ranks))?
            .context("these flags start servers without a mode that uses them")
    }
}

/// Starts the servers and the ranks on this machine, and returns the exit code.
///
/// # Errors
/// If the job fails.
pub fn launch(
    flags: &crate::place::Flags,
    mode: &ServerMode,
    settings: &link::Settings,
) -> Result<u8> {
    mode.check_start()?;
    let size = Size::Elastic { min: mode.ranks, max: mode.ranks };
    let elastic = ElasticFlags::default().resolve(Some(size), flags)?;
    let elastic = elastic.context("a job with servers is elastic")?;
    ranks::launch_elastic(flags, &mode.job(elastic, settings.heartbeat_timeout), settings.port)
}

/// Adds to an error about lost rows a hint for trainings without snapshots.
pub fn or_lost(error: Error) -> Error {
    let is_lost = |cause: &(dyn std::error::Error + 'static)| {
        let server = cause.downcast_ref::<thinwire_server::Error>();
        server.is_some_and(|error| error.kind() == thinwire_server::Kind::Lost)
    };
    match error.chain().any(is_lost) {
        true => {
            hinted(error, "start again with --replicas N, so that N servers can be lost at once")
        }
        false => error,
    }
}

/// One rank of a job with servers.
pub struct Member {
    job_address: JobAddress,
    presence: Presence,
    /// Place of the rank in the only epoch.
    pub place: Place,
}

impl Member {
    /// Joins the job and waits for the other ranks.
    ///
    /// # Errors
    /// If the job refuses this process, or the ranks do not join in time.
    pub fn join(
        job_address: JobAddress,
        mode: &ServerMode,
        settings: &link::Settings,
    ) -> Result<(Member, Link)> {
        let links = settings.of_job(settings.limit())?;
        let options = Options::new(CoordinatorMode::Saved, 1, WORLD_SIZE_MAX);
        let presence = Presence::join(&job_address, &links, options, mode.facts().collect())?;
        let ranks = Some(mode.ranks);
        let epoch = training::first_epoch(&presence, &job_address, ranks, settings.timeout)?;
        let world = epoch.world(presence.id()).context("this process is not in the epoch")?;
        let link = presence.meet(&epoch)?;
        let link = link.context("the first epoch has ended before its ranks had met")?;
        let (rank, world) = (world.rank().0, world.size() as u32);
        let place = Place { rank, world, ..place::of_member(&job_address) };
        Ok((Member { job_address, presence, place }, link))
    }

    /// Defines the table of rows, and waits for the servers.
    ///
    /// # Errors
    /// If the job has a different table, or the servers do not join in time.
    pub fn rows(
        &self,
        mode: &ServerMode,
        sizes: [u32; 2],
        seed: u64,
        settings: &link::Settings,
    ) -> Result<ServedRows> {
        let (address, timeout) = (&self.job_address, settings.timeout);
        Ok(ServedRows::open(address, &mode.settings, sizes, seed, timeout)?)
    }

    /// Sends the coordinator this rank's figures for `thinwire top`.
    pub fn tell(&self, live: &Live) {
        self.presence.tell(live.object());
    }

    /// Ends the job including its servers, once no rank needs them.
    pub fn complete(&self) {
        // Another rank may have reported it already.
        let _ = self.presence.complete();
    }
}
