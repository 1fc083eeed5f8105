//! The load that a schedule puts on the rank's own processor and network.
//!
//! Unlike in [`crate::cost`], no other rank's schedule is simulated, so the load is cheap to compute in
//! any world. It does not include the time in which a rank waits for others.

use crate::cost::Item;
use crate::{Cost, Operation, Schedule, Speeds};

/// Returns the cost of `schedule` without any waiting; its `seconds` are 0.
pub fn load_of(schedule: &Schedule, encoded_len: &dyn Fn(usize) -> usize, speeds: &Speeds) -> Cost {
    let mut cost = Cost::default();
    let lengths = schedule.bytes(encoded_len);
    for task in &schedule.tasks {
        let slot = task.operation.slot().index();
        let item = Item::new(&task.operation, 0, schedule.slots[slot], lengths[slot], speeds);
        cost.cpu_seconds += item.work_s;
        match task.operation {
            Operation::Send { .. } => {
                cost.egress_seconds += item.wire_s;
                cost.sent_bytes += item.bytes;
                cost.messages += 1;
            }
            Operation::Recv { .. } => {
                cost.ingress_seconds += item.wire_s;
                cost.received_bytes += item.bytes;
            }
            _ => {}
        }
    }
    cost
}

#[cfg(test)]
mod tests {
    use thinwire_wire::World;

    use super::*;
    use crate::{Algorithm, Shape, all_reduce, cost_of};

    #[test]
    fn the_load_of_all_ranks_is_what_the_play_adds_up() {
        let speeds = Speeds {
            latency_s: 1e-3,
            bytes_per_s: 1e7,
            encode_per_s: 1e9,
            decode_per_s: 2e9,
            merge_per_s: 3e9,
            task_overhead_s: 1e-6,
        };
        let shape = Shape { length: 10_000, block: 1, partitions: 3 };
        for algorithm in Algorithm::ALL {
            for size in [2, 3, 5, 8] {
                let schedules: Vec<Schedule> = (0..size)
                    .map(|rank| all_reduce(algorithm, World::new(rank, size).unwrap(), &shape))
                    .collect();
                let played = cost_of(&schedules, &|count| 4 * count, &speeds);
                let loads = schedules.iter().map(|one| load_of(one, &|count| 4 * count, &speeds));
                let (mut cpu, mut egress, mut sent) = (0.0_f64, 0.0_f64, 0);
                for load in loads {
                    cpu = cpu.max(load.cpu_seconds);
                    egress = egress.max(load.egress_seconds);
                    sent = sent.max(load.sent_bytes);
                }
                assert!((cpu - played.cpu_seconds).abs() < 1e-9, "{algorithm} of {size}");
                assert!((egress - played.egress_seconds).abs() < 1e-9);
                assert_eq!(sent, played.sent_bytes);
            }
        }
    }
}
