//! Laws of typed memory: bytes arrive as they are, and sums of 16-bit numbers are rounded once.

use half::{bf16, f16};
use proptest::prelude::*;
use thinwire_collective::{
    Element, Group, Kind, Number, Options, all_gather, all_gather_bytes, all_reduce, all_to_all,
    broadcast, broadcast_bytes, reduce_scatter, start,
};
use thinwire_schedule::Algorithm;
use thinwire_testkit::{self as testkit, Network};
use thinwire_wire::Rank;

fn spawn<T: Send>(size: usize, body: impl Fn(&mut Group) -> T + Sync) -> Vec<T> {
    testkit::spawn(Network::Mem, size, |link| body(&mut Group::new(link)))
}

/// The lengths that matter: nothing, one, primes, and more than one partition of a broadcast.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![4 => Just(0_usize), 4 => Just(1), 8 => Just(127), 8 => Just(4099), 1 => Just((9 << 20) + 3)]
}

/// Any bytes of a rank; every fourth word is the pattern of a signalling NaN.
fn bytes(seed: u64, rank: Rank, length: usize) -> Vec<u8> {
    let mut state = seed ^ u64::from(rank.0 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut words = (0_u32..).flat_map(|word| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let random = (state >> 32) as u32;
        if word % 4 == 0 { random | 0x7F80_0001 } else { random }.to_le_bytes()
    });
    words.by_ref().take(length).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_bytes_arrive_as_they_are(size in 1_usize..9, length in length(), seed: u64, root in 0_u32..8) {
        let root = Rank(root % size as u32);
        let of = |rank: usize| bytes(seed, Rank(rank as u32), length);
        let everybody: Vec<Vec<u8>> = (0..size).map(of).collect();
        let ragged: Vec<Vec<u8>> =
            everybody.iter().enumerate().map(|(rank, it)| it[..length * rank / size].to_vec()).collect();
        for (gathered, copied, of_any_length, of_root) in spawn(size, |group| {
            let rank = group.world().rank().index();
            let mut copied = everybody[rank].clone();
            broadcast(group, &mut copied, root).unwrap();
            (
                all_gather(group, &everybody[rank]).unwrap(),
                copied,
                all_gather_bytes(group, &ragged[rank]).unwrap(),
                broadcast_bytes(group, &ragged[rank], root, length).unwrap(),
            )
        }) {
            prop_assert!(gathered == everybody.concat());
            prop_assert!(copied == everybody[root.index()]);
            prop_assert!(of_any_length == ragged);
            prop_assert!(of_root == ragged[root.index()]);
        }
    }

    #[test]
    fn parts_arrive_where_they_are_sent(size in 1_usize..9, seed: u64) {
        let part = |from: usize, to: usize| bytes(seed ^ to as u64, Rank(from as u32), (from * 5 + to * 3) % 11);
        for (rank, received) in spawn(size, |group| {
            let rank = group.world().rank().index();
            let sends: Vec<usize> = (0..size).map(|to| part(rank, to).len()).collect();
            let recvs: Vec<usize> = (0..size).map(|from| part(from, rank).len()).collect();
            let mut values: Vec<u8> = (0..size).flat_map(|to| part(rank, to)).collect();
            let sent = values.len();
            values.resize(sent + recvs.iter().sum::<usize>(), 0);
            all_to_all(group, &mut values, &sends, &recvs).unwrap();
            values.split_off(sent)
        }).into_iter().enumerate() {
            let mut expected: Vec<u8> = Vec::new();
            for from in 0..size {
                let part = part(from, rank);
                // The part for itself is left to the caller.
                expected.extend(if from == rank { vec![0; part.len()] } else { part });
            }
            prop_assert_eq!(received, expected);
        }
    }

    #[test]
    fn sums_of_halves_are_sums_of_f32_rounded_once(
        size in 1_usize..9, length in prop_oneof![Just(0_usize), Just(1), Just(127), Just(17_011)], seed: u64,
    ) {
        check_sums::<f16>(size, length, seed, f16::from_f32)?;
        check_sums::<bf16>(size, length, seed, bf16::from_f32)?;
    }
}

/// Compares with sums of f32 that go the same way.
fn check_sums<T: Number + PartialEq + std::fmt::Debug + Into<f32> + Send>(
    size: usize,
    length: usize,
    seed: u64,
    round: fn(f32) -> T,
) -> Result<(), TestCaseError> {
    let value = |byte: u8| round((f32::from(byte) - 127.5) / 7.0);
    let of = |rank: Rank| -> Vec<T> { bytes(seed, rank, length).into_iter().map(value).collect() };
    let wide = Options { algorithm: Some(Algorithm::TwoShot.into()), ..Options::default() };
    for (sums, scattered, exact) in spawn(size, |group| {
        let mine = of(group.world().rank());
        let (mut sums, mut scattered) = (mine.clone(), mine.clone());
        let mut exact: Vec<f32> = mine.into_iter().map(Into::into).collect();
        all_reduce(group, &mut sums, &Options::default()).unwrap();
        let chunk = reduce_scatter(group, &mut scattered).unwrap();
        all_reduce(group, &mut exact, &wide).unwrap();
        (sums, (scattered[chunk.clone()].to_vec(), chunk), exact)
    }) {
        let expected: Vec<T> = exact.into_iter().map(round).collect();
        prop_assert_eq!(&sums, &expected);
        prop_assert_eq!(&scattered.0, &expected[scattered.1]);
    }
    Ok(())
}

#[test]
fn bytes_are_not_summed() {
    let mut group = Group::new(thinwire_link::mem::mesh(1).remove(0));
    let error = start::all_reduce(&mut group, vec![1_u8; 8], &Options::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert_eq!(error.to_string(), "a sum of bytes, expected f32 (in all_reduce)");
}

#[test]
fn memory_of_another_type_is_refused() {
    let errors = spawn(2, |group| {
        let result = match group.world().rank().0 {
            0 => all_gather(group, &[1_u8; 8]).map(drop),
            _ => all_gather(group, &[1.0_f32; 2]).map(drop),
        };
        result.unwrap_err().to_string()
    });
    let refusal = |text: &String| text.contains("dtype mismatch: rank 1 sent f32, expected bytes");
    assert!(
        errors.iter().any(refusal) || errors[1].contains("sent bytes, expected f32"),
        "{errors:?}"
    );
}

#[test]
fn longer_bytes_than_agreed_are_refused() {
    let lengths = spawn(2, |group| {
        let error = broadcast_bytes(group, &[7; 9], Rank(1), 8).unwrap_err();
        error.to_string()
    });
    assert_eq!(lengths, vec!["9 bytes from rank 1, expected at most 8 (in broadcast)"; 2]);
}

#[test]
fn every_type_of_elements_has_its_dtype() {
    assert_eq!(u8::DTYPE, None);
    assert_eq!((f32::DTYPE, f16::DTYPE), (Some(f32::SUM), Some(f16::SUM)));
}
