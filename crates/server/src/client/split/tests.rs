//! Laws of rows divided over shards.

use proptest::prelude::*;

use super::*;
use crate::configuration::TableDefinition;

fn partition_map(shards: u32, optimizer: &str) -> PartitionMap {
    let table = |name: &str, rows, width| TableDefinition {
        name: name.to_owned(),
        rows,
        width,
        optimizer: optimizer.to_owned(),
        initial: "zeros".to_owned(),
        seed: 0,
        stream: 0,
        values: "f32".to_owned(),
    };
    let definition = Definition {
        tables: vec![table("a", 40, 2), table("b", 90, 3)],
        consistency: "async".to_owned(),
        shards,
        backups: 0,
        servers: 1,
        restore: None,
    };
    PartitionMap::new(&definition, &definition.layout().unwrap())
}

fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn refusals_name_both_values() {
    let partition_map = partition_map(3, "adam:lr=1");
    assert_eq!(refusal(partition_map.plan(&[(2, &[])])), "table 2, expected one of 0..2");
    assert_eq!(
        refusal(partition_map.plan(&[(0, &[3, 40])])),
        "row 40 of table 'a', expected below 40"
    );
    let gradient = Gradient { table: 1, rows: &[1, 2], values: &[0.0; 4] };
    assert_eq!(
        refusal(partition_map.parts(&[gradient])),
        "gradient of 4 values for 2 rows of table 'b', expected 3 for each row"
    );
    let gradient = Gradient { table: 0, rows: &[1, 1], values: &[0.0; 4] };
    assert_eq!(
        refusal(partition_map.parts(&[gradient])),
        "1 rows of table 'a', expected all 40, since its optimiser updates all rows"
    );
}

proptest! {
    #[test]
    fn pulls_in_portions_are_the_plain_gather(
        a in prop::collection::vec(0_u64..40, 0..60), b in prop::collection::vec(0_u64..90, 0..60),
        shards in 1_u32..9
    ) {
        let value = |table: u32, row: u64, column| (table * 1000) as f32 + (row * 4 + column) as f32;
        let values = |table: u32, rows: &[u64]| -> Vec<f32> {
            let width = if table == 0 { 2 } else { 3 };
            rows.iter().flat_map(|row| (0..width).map(|c| value(table, *row, c))).collect()
        };
        let plan = partition_map(shards, "sgd:lr=1").plan(&[(1, &b), (0, &a), (1, &a)]).unwrap();
        let mut out = vec![1; plan.length];
        for range in &plan.ranges {
            let answer: Vec<f32> =
                range.rows.iter().flat_map(|(table, rows)| values(*table, rows)).collect();
            let answer = bytemuck::must_cast_slice(&answer);
            prop_assert_eq!(answer.len(), range.bytes);
            range.copy(answer, &mut out);
        }
        for (from, to) in &plan.repeats {
            out.copy_within(from.clone(), *to);
        }
        let out: Vec<f32> = bytemuck::pod_collect_to_vec(&out);
        prop_assert_eq!(out, [values(1, &b), values(0, &a), values(1, &a)].concat());
    }

    #[test]
    fn pushes_in_parts_are_the_plain_sum(
        a in prop::collection::vec(0_u64..40, 0..60), b in prop::collection::vec(0_u64..90, 0..60),
        shards in 1_u32..9
    ) {
        let values = |rows: &[u64], width: usize| -> Vec<f32> {
            (0..rows.len() * width).map(|at| 0.1 * at as f32).collect()
        };
        let (x, y) = (values(&a, 2), values(&b, 3));
        let gradients = [
            Gradient { table: 1, rows: &b, values: &y },
            Gradient { table: 0, rows: &a, values: &x },
            Gradient { table: 1, rows: &b, values: &y },
        ];
        let mut expected: BTreeMap<(u32, u64), Vec<f32>> = BTreeMap::new();
        for gradient in &gradients {
            let width = if gradient.table == 0 { 2 } else { 3 };
            for (row, values) in gradient.rows.iter().zip(gradient.values.chunks(width)) {
                let sum = expected.entry((gradient.table, *row));
                sum.and_modify(|sum| sum.iter_mut().zip(values).for_each(|(s, x)| *s += x))
                    .or_insert(values.to_vec());
            }
        }
        let mut found = BTreeMap::new();
        for parts in partition_map(shards, "sgd:lr=1").parts(&gradients).unwrap() {
            prop_assert!(parts.windows(2).all(|pair| pair[0].table < pair[1].table));
            for part in parts {
                prop_assert!(part.rows.windows(2).all(|pair| pair[0] < pair[1]));
                let gradient = part.gradient.into_f32(part.rows.len());
                let width = gradient.len() / part.rows.len();
                for (row, values) in part.rows.iter().zip(gradient.chunks(width)) {
                    found.insert((part.table, *row), values.to_vec());
                }
            }
        }
        prop_assert_eq!(found, expected);
    }
}
