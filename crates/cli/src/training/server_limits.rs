//! Limits of the servers that a launcher starts: their flags.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use thinwire_report::figures::{bytes, parse_bytes};
use thinwire_server::MemoryLimit;

use crate::failure::hinted;

/// Flags of the limits of servers.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct LimitFlags {
    /// With servers, limit on the memory of rows of each server that is started here, such as 2GB; rows beyond it
    /// are evicted to a file in --spill-dir [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    server_memory: Option<u64>,
    /// With --server-memory, folder for these files, on a disk; a file has no name and is gone when its server ends
    #[arg(long, value_name = "FOLDER")]
    spill_dir: Option<PathBuf>,
}

impl LimitFlags {
    /// Returns the limit of a server's memory, if there is one.
    ///
    /// # Errors
    /// If one flag is given without the other.
    pub fn resolve(&self) -> Result<Option<MemoryLimit>> {
        let Some(flag) = self.flag() else { return Ok(None) };
        let (without, hint) = match (self.server_memory, self.spill_dir.clone()) {
            (Some(bytes_max), Some(folder)) => return Ok(Some(MemoryLimit { bytes_max, folder })),
            (Some(_), None) => ("a folder for the rows beyond it", "add --spill-dir FOLDER"),
            (None, _) => ("a limit of memory", "add --server-memory BYTES"),
        };
        Err(hinted(anyhow!("{flag} without {without}"), format!("{hint}, or leave it out")))
    }

    /// Returns a flag that was given.
    pub fn flag(&self) -> Option<String> {
        let memory =
            self.server_memory.map(|limit| format!("--server-memory {}", bytes(limit as f64)));
        let folder = self.spill_dir.as_ref();
        memory.or(folder.map(|folder| format!("--spill-dir {}", folder.display())))
    }
}

/// Returns the flags of a limit for a server that the launcher starts.
pub fn server_arguments(limit: &MemoryLimit) -> [OsString; 4] {
    let MemoryLimit { bytes_max, folder } = limit;
    let folder = folder.clone().into_os_string();
    ["--memory".into(), format!("{bytes_max}B").into(), "--spill-dir".into(), folder]
}
