//! Checkpoints of `thinwire graph train`: one is written after every pass, and a training can resume from
//! one.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use thinwire_checkpoint::{FolderLock, Policy, check_variables};
use thinwire_collective::Group;
use thinwire_train::checkpoint::Checkpoint;
use thinwire_train::session::{check_folder, hold_in_all};

use crate::failure::hinted;
use crate::training::{CHECKPOINTS, checkpoint_folder, checkpoints, ensure_writable};
use crate::units;

/// Flags of checkpoints.
#[derive(clap::Args)]
#[group(skip)]
#[command(next_help_heading = CHECKPOINTS)]
pub struct Flags {
    /// Checkpoint to continue from, or its folder
    ///
    /// Training continues up to --passes. In a folder, or at s3://BUCKET/PREFIX, the newest checkpoint is
    /// used.
    #[arg(long, value_name = "CHECKPOINT", value_parser = checkpoint_folder::<PathBuf>())]
    resume: Option<PathBuf>,
    /// Folder for a checkpoint after every pass
    ///
    /// All ranks share it. It may be s3://BUCKET/PREFIX.
    #[arg(long, value_name = "DIR", value_parser = checkpoint_folder::<PathBuf>())]
    checkpoint_dir: Option<PathBuf>,
    /// Time to wait at the start for folders that are mounted late
    ///
    /// Applies to --resume and --checkpoint-dir.
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = units::time(0..=86_400), hide_short_help = true)]
    checkpoint_wait: Duration,
}

impl Flags {
    /// Refuses the flags of a training that cannot have checkpoints, for the reason `why`.
    ///
    /// # Errors
    /// If one of the flags is given.
    pub fn refuse(&self, why: &str) -> Result<()> {
        let flags = [("--resume", &self.resume), ("--checkpoint-dir", &self.checkpoint_dir)];
        match flags.into_iter().find_map(|(flag, path)| Some((flag, path.as_ref()?))) {
            None => Ok(()),
            Some((flag, path)) => {
                Err(hinted(anyhow!("{flag} {} {why}", path.display()), format!("leave {flag} out")))
            }
        }
    }
}

/// The checkpoint to resume from, and the folder for new ones.
pub struct Checkpoints {
    /// The checkpoint to resume from.
    pub resumed: Option<Checkpoint>,
    /// The folder for new checkpoints.
    pub policy: Option<Policy>,
}

impl Checkpoints {
    /// Reads and checks the checkpoint and the folder of the flags.
    ///
    /// # Errors
    /// If there is no such checkpoint, it has no passes left, or the folder is not writable.
    pub fn resolve(flags: &Flags, passes: u64) -> Result<Checkpoints> {
        let (resume, folder) = (flags.resume.as_deref(), flags.checkpoint_dir.as_deref());
        let resumed = checkpoints::resolve(resume, folder, flags.checkpoint_wait)?;
        if let Some(found) = &resumed {
            let done = found.progress().position.pass;
            if done >= passes {
                let path = found.path().display();
                let error =
                    anyhow!("{path} has {done} passes, expected fewer than --passes {passes}");
                return Err(hinted(error, "--passes includes the passes before the checkpoint"));
            }
        }
        let policy = flags.checkpoint_dir.clone();
        let policy = policy.map(|folder| checkpoints::policy(folder, None));
        if let Some(policy) = &policy {
            check_variables()?;
            ensure_writable(&policy.folder, "checkpoints", "--checkpoint-dir")?;
        }
        Ok(Checkpoints { resumed, policy })
    }

    /// Locks the folder once all ranks see it.
    ///
    /// # Errors
    /// If another training uses the folder, a rank does not see it or has none, or a rank is lost.
    pub fn hold(&self, rank: u32, group: &mut Group) -> Result<FolderLock> {
        let has = f32::from(u8::from(self.policy.is_some()));
        let all = thinwire_collective::all_gather(group, &[has])?;
        if let Some(other) = all.iter().position(|other| *other != has) {
            let (with, without) =
                if has == 1.0 { (rank, other as u32) } else { (other as u32, rank) };
            let error = anyhow!("rank {with} has --checkpoint-dir, but rank {without} does not");
            return Err(hinted(error, "give every rank the same --checkpoint-dir"));
        }
        let (policy, resumed) = (self.policy.as_ref(), self.resumed.as_ref());
        let what = "take the folder of checkpoints";
        let lock = hold_in_all(policy, resumed, group, what)?;
        check_folder(policy, group)?;
        Ok(lock)
    }
}
