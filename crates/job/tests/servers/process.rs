//! Presences in processes of their own, which can be killed and stopped.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use thinwire_job::elastic::JobAddress;

/// A process that is present in a job until it is dropped.
pub struct Process {
    pub job_address: JobAddress,
    child: Child,
}

impl Process {
    /// Starts this program again, as the test `present`.
    pub fn start(job_address: JobAddress) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--ignored", "--exact", "present", "--nocapture"])
            .envs(job_address.variables());
        // It ends with the other end of this pipe.
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        Process { job_address, child }
    }

    /// Kills it without a word.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    pub fn stop(&self) {
        self.send(Signal::STOP);
    }

    pub fn go_on(&self) {
        self.send(Signal::CONT);
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
