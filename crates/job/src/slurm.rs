//! Slurm's job steps, and its short forms of lists.

use std::fmt;

use crate::environment::Variables;

/// Step ids from here on are none of srun's: batch scripts, external processes, interactive shells.
const STEP_IDS_END: u32 = 0xffff_fff0;

/// A step of a job: what one srun has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    job: u32,
    step: u32,
}

impl Step {
    /// A port that two steps on one host hardly share: neither two of one job, nor of jobs whose ids
    /// differ by a multiple of 10,000.
    pub fn port(&self) -> u16 {
        let (job, step) = (u64::from(self.job), u64::from(self.step));
        let port = job + 7919 * (job / 10_000) + 6181 * step;
        // Above the ports of most services, below those that Linux gives to connections, from 32,768 on.
        20_000 + (port % 10_000) as u16
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slurm step {}.{}", self.job, self.step)
    }
}

/// The step whose tasks are the ranks, if rank and world are what it gives this process.
pub fn step_of(variables: Variables<'_>, rank: u32, world: u32) -> Option<Step> {
    let number = |names: &[&str]| {
        names.iter().find_map(|name| variables(name)).and_then(|value| value.parse::<u32>().ok())
    };
    let is_task = number(&["SLURM_PROCID"]) == Some(rank)
        && number(&["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"]) == Some(world);
    let step = number(&["SLURM_STEP_ID"]).filter(|step| is_task && *step < STEP_IDS_END)?;
    // The parts of a heterogeneous job have ids of their own.
    let job = number(&["SLURM_JOB_ID_HET_GROUP_0", "SLURM_JOB_ID"]).unwrap_or(0);
    Some(Step { job, step })
}

/// Returns the number of tasks of the node with this index: "4(x2),3" means 4, 4 and 3 on three
/// nodes.
pub fn tasks_of_node(node: usize, tasks: &str) -> Option<u32> {
    let mut first = 0;
    for group in tasks.split(',') {
        let (count, times) = match group.split_once("(x") {
            Some((count, times)) => (count, times.trim_end_matches(')').parse().ok()?),
            None => (group, 1),
        };
        first += times;
        if node < first {
            return count.parse().ok();
        }
    }
    None
}

/// "gpu[07-09,12],login" starts with gpu07.
pub fn first_host(list: &str) -> String {
    let Some((prefix, rest)) = list.split_once('[').filter(|(prefix, _)| !prefix.contains(','))
    else {
        return list.split(',').next().unwrap_or(list).to_owned();
    };
    let first = rest.split([',', '-', ']']).next().unwrap_or_default();
    let suffix = rest.split_once(']').map_or("", |(_, tail)| tail.split(',').next().unwrap_or(""));
    format!("{prefix}{first}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_run_beside_each_other_have_ports_of_their_own() {
        let port = |job, step| Step { job, step }.port();
        let steps = (0..20).map(|step| port(77, step));
        let jobs = (1..20).map(|times| port(77 + 10_000 * times, 0));
        let next = (1..100).map(|later| port(77 + later, 0));
        let all: std::collections::BTreeSet<u16> = steps.chain(jobs).chain(next).collect();
        assert_eq!(all.len(), 20 + 19 + 99);
        assert!((20_000..30_000).contains(&port(u32::MAX, STEP_IDS_END)));
    }

    #[test]
    fn the_first_host_of_a_node_list() {
        for (list, first) in [
            ("a", "a"),
            ("a,b", "a"),
            ("n[1-3]", "n1"),
            ("n[05,07].x,m", "n05.x"),
            ("a,n[1-2]", "a"),
        ] {
            assert_eq!(first_host(list), first);
        }
    }

    #[test]
    fn the_tasks_of_each_node() {
        for (node, tasks) in [(0, Some(4)), (1, Some(4)), (2, Some(3)), (3, None)] {
            assert_eq!(tasks_of_node(node, "4(x2),3"), tasks);
        }
        assert_eq!(tasks_of_node(0, "many"), None);
    }
}
