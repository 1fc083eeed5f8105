//! Slurm's short forms of lists.

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
