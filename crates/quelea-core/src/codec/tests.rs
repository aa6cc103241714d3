//! What every codec must satisfy: exact bytes, round trips, bounds, and calm under any bytes.

use super::*;
use crate::message::Part;
use crate::options::Value;
use crate::payload::Pool;
use crate::random::Rng;
use crate::vector;

const LENGTHS: [usize; 9] = [0, 1, 7, 8, 9, 31, 32, 33, 1000];

fn build(name: &str, given: &[(&str, Value)]) -> Box<dyn Codec> {
    let entry = find(name).expect("in the table");
    let given = given.iter().map(|(key, value)| (key.to_string(), value.clone()));
    (entry.build)(&Options::check(entry.meta.options, given).expect("good parameters"), 7)
}

/// Every codec, with its defaults and with others.
fn variants() -> Vec<(String, Box<dyn Codec>)> {
    let defaults =
        CODECS.iter().map(|entry| (entry.meta.name.to_string(), build(entry.meta.name, &[])));
    let share = |x| ("share", Value::Number(x));
    let levels = |x| ("levels", Value::Number(x));
    let group = |x| ("group", Value::Number(x));
    let others: Vec<(&str, Vec<(&str, Value)>)> = vec![
        ("top-k", vec![share(0.3)]),
        ("top-k", vec![share(1.0)]),
        ("random-k", vec![share(0.3)]),
        ("random-k", vec![share(1.0)]),
        ("tern-grad", vec![("clip", Value::Number(0.0))]),
        ("tern-grad", vec![("contract", Value::Flag(true))]),
        ("tern-grad", vec![("clip", Value::Number(0.5)), ("contract", Value::Flag(true))]),
        ("unbiased-k", vec![share(0.3)]),
        ("unbiased-k", vec![share(0.8)]),
        ("unbiased-k", vec![share(1.0)]),
        ("unbiased-k", vec![share(0.3), ("contract", Value::Flag(true))]),
        ("qsgd", vec![levels(1.0)]),
        ("qsgd", vec![levels(5.0)]),
        ("qsgd", vec![levels(5.0), ("contract", Value::Flag(true))]),
        ("qsgd", vec![levels(32_767.0)]),
        ("qsgd", vec![levels(6.0), group(9.0)]),
        ("qsgd", vec![levels(127.0), group(32.0), ("contract", Value::Flag(true))]),
    ];
    let others =
        others.into_iter().map(|(name, given)| (format!("{name} {given:?}"), build(name, &given)));
    defaults.chain(others).collect()
}

fn at(step: u64) -> VectorId {
    VectorId { rank: Rank(1), step, bucket: 3 }
}

fn normals(len: usize, seed: u64) -> Vec<f32> {
    let mut rng = Rng::new(seed, "values", len as u64);
    (0..len).map(|_| rng.normal() as f32).collect()
}

fn round_trip(codec: &mut dyn Codec, at: VectorId, values: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0xaa; codec.bytes(values.len()) + 5];
    let mut out = vec![f32::NAN; values.len()];
    let used = codec.encode(at, values, &mut bytes);
    assert_eq!(used, codec.bytes(values.len()));
    assert_eq!(bytes[used..], [0xaa; 5], "nothing is written beyond the end");
    codec.decode(at, &bytes[..used], &mut out).expect("just encoded");
    out
}

/// ‖C(v) − v‖² / ‖v‖².
fn loss(values: &[f32], out: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let errors = values.iter().zip(out).map(|(v, o)| square(f64::from(*v) - f64::from(*o)));
    errors.sum::<f64>() / vector::sum_of_squares(values)
}

#[test]
fn rows_are_in_order_and_slips_are_recognised() {
    assert!(CODECS.is_sorted_by_key(|entry| entry.meta.name));
    assert_eq!(find("topk").expect_err("unknown"), Some("top-k"));
    assert_eq!(find("random_k").expect_err("unknown"), Some("random-k"));
}

#[test]
fn bytes_are_those_of_the_formats() {
    let bytes = |name, given: &[(&str, Value)]| {
        let codec = build(name, given);
        [0, 1, 1000, 100_000].map(|len| codec.bytes(len))
    };
    assert_eq!(bytes("f32", &[]), [0, 4, 4000, 400_000]);
    assert_eq!(bytes("bf16", &[]), [0, 2, 2000, 200_000]);
    assert_eq!(bytes("f16", &[]), [4, 6, 2004, 200_004]);
    assert_eq!(bytes("sign", &[]), [4, 5, 129, 12_504]);
    assert_eq!(bytes("random-k", &[]), [0, 4, 40, 4000]);
    assert_eq!(bytes("top-k", &[]), [0, 10, 64, 6008]);
    assert_eq!(bytes("unbiased-k", &[]), [0, 10, 64, 6008]);
    assert_eq!(bytes("tern-grad", &[]), [4, 5, 254, 25_004]);
    // A norm for every 512 elements.
    assert_eq!(bytes("qsgd", &[]), [4, 5, 1008, 100_000 + 196 * 4]);
    let (levels, whole) = (("levels", Value::Number(5.0)), ("group", Value::Number(0.0)));
    assert_eq!(bytes("qsgd", &[levels.clone(), whole]), [4, 5, 504, 50_004]);
    // 33 groups of 30 elements in 4 + 15 bytes and one of 10 elements in 4 + 5.
    let group = ("group", Value::Number(30.0));
    assert_eq!(bytes("qsgd", &[levels, group]), [4, 5, 636, 3333 * 19 + 9]);
}

#[test]
fn vectors_of_all_lengths_make_the_trip() {
    for (name, mut codec) in variants() {
        for len in LENGTHS {
            let values = normals(len, 1);
            let out = round_trip(&mut *codec, at(0), &values);
            let properties = codec.properties(len);
            if properties.lossless {
                assert_eq!(out, values, "{name}, {len} values");
            } else {
                assert!(out.iter().all(|x| x.is_finite()), "{name}, {len} values");
            }
            let zeros = round_trip(&mut *codec, at(0), &vec![0.0; len]);
            assert!(zeros.iter().all(|x| *x == 0.0), "{name}: nothing from nothing");
        }
    }
}

#[test]
fn mean_loss_is_within_the_contraction_of_the_table() {
    for (name, mut codec) in variants() {
        for (len, seed) in [(1, 0), (9, 1), (33, 2), (1000, 3), (1000, 4)] {
            let (values, draws) = (normals(len, seed), 400);
            let mut draw = |step| loss(&values, &round_trip(&mut *codec, at(step), &values));
            let mean = (0..draws).map(&mut draw).sum::<f64>() / draws as f64;
            let contraction = codec.properties(len).contraction;
            // The bound of random-k is met with equality, so that a mean may lie a little above.
            let slack = if name.starts_with("random-k") { 0.05 } else { 1e-6 };
            let bound = 1.0 - contraction + slack;
            assert!(contraction == 0.0 || mean <= bound, "{name}, {len}: {mean} > {bound}");
        }
    }
}

#[test]
fn loss_of_sign_is_what_the_norms_say() {
    let values = normals(1000, 5);
    let out = round_trip(&mut *build("sign", &[]), at(0), &values);
    let l1: f64 = values.iter().map(|x| f64::from(x.abs())).sum();
    let delta = l1 * l1 / (1000.0 * vector::sum_of_squares(&values));
    assert!((loss(&values, &out) - (1.0 - delta)).abs() < 1e-6);
}

#[test]
fn top_k_keeps_the_largest_and_of_equals_the_first() {
    let mut codec = build("top-k", &[("share", Value::Number(0.5))]);
    let out = round_trip(&mut *codec, at(0), &[1.0, -3.0, 2.0, -2.0, 2.0, 0.0]);
    assert_eq!(out, [0.0, -3.0, 2.0, -2.0, 0.0, 0.0]);
    for (len, share, seed) in [(1000, 0.1, 1), (70_000, 0.01, 2), (200_000, 0.003, 3)] {
        // Coarse values, so that there are many ties.
        let values: Vec<f32> = normals(len, seed).iter().map(|x| (x * 8.0).round() / 8.0).collect();
        let mut order: Vec<usize> = (0..len).collect();
        order.sort_by(|a, b| values[*b].abs().total_cmp(&values[*a].abs()).then(a.cmp(b)));
        let mut wanted = vec![0.0; len];
        order[..share::kept(share, len)].iter().for_each(|k| wanted[*k] = values[*k]);
        let mut codec = build("top-k", &[("share", Value::Number(share))]);
        assert_eq!(round_trip(&mut *codec, at(0), &values), wanted);
    }
}

#[test]
fn top_k_at_one_percent_sends_less_than_two_and_a_half() {
    let (plain, sparse) = (build("f32", &[]), build("top-k", &[]));
    for len in [1000, 65_536, 6_553_600] {
        assert!((sparse.bytes(len) as f64) < 0.025 * plain.bytes(len) as f64);
    }
}

#[test]
fn random_k_sends_the_values_as_they_are() {
    let values = normals(1000, 4);
    let out = round_trip(&mut *build("random-k", &[]), at(9), &values);
    let kept: Vec<usize> = (0..1000).filter(|k| out[*k] != 0.0).collect();
    assert_eq!(kept.len(), 10);
    assert!(kept.iter().all(|k| out[*k] == values[*k]));
}

#[test]
fn bytes_are_a_function_of_the_arguments() {
    for ((name, mut first), (_, mut second)) in variants().into_iter().zip(variants()) {
        let values = normals(1000, 6);
        let encode = |codec: &mut dyn Codec| {
            let mut bytes = vec![0; codec.bytes(1000)];
            codec.encode(at(4), &values, &mut bytes);
            bytes
        };
        // The first has a history, the second has none.
        round_trip(&mut *first, at(3), &normals(33, 1));
        assert_eq!(encode(&mut *first), encode(&mut *second), "{name}");
        assert_eq!(encode(&mut *first), encode(&mut *first), "{name}");
    }
}

#[test]
fn what_is_not_finite_stays_where_it_is() {
    for (name, mut codec) in variants() {
        let mut values = normals(100, 8);
        (values[3], values[50], values[51]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        let out = round_trip(&mut *codec, at(0), &values);
        let elsewhere = (0..100).filter(|k| ![3, 50, 51].contains(k));
        assert!(elsewhere.into_iter().all(|k| out[k].is_finite()), "{name}: {out:?}");
        for all in [f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1)] {
            round_trip(&mut *codec, at(0), &[all; 33]);
        }
    }
}

#[test]
fn wrong_lengths_are_refused_by_name() {
    for (name, mut codec) in variants() {
        let right = codec.bytes(100);
        for wrong in [0, right - 1, right + 1, 4 * right] {
            let error = codec.decode(at(0), &vec![0; wrong], &mut [0.0; 100]).expect_err("refused");
            assert!(
                error.to_string().contains(&format!("100 values take exactly {right}")),
                "{name}"
            );
        }
    }
}

#[test]
fn hostile_bytes_are_read_or_refused_but_never_panic() {
    let mut rng = Rng::new(11, "fuzz", 0);
    let mut refused = 0;
    for (_, mut codec) in variants() {
        for round in 0..2000 {
            let len = LENGTHS[rng.below(9) as usize];
            let mut bytes = vec![0; codec.bytes(len)];
            codec.encode(at(0), &normals(len, round % 5), &mut bytes);
            // All random, or a few bytes changed.
            let changes = if round % 2 == 0 { bytes.len() } else { bytes.len().min(3) };
            for _ in 0..changes {
                let place = rng.below(bytes.len() as u64) as usize;
                bytes[place] = rng.next_u64() as u8;
            }
            refused += usize::from(codec.decode(at(0), &bytes, &mut vec![0.0; len]).is_err());
        }
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn refusals_say_what_is_wrong() {
    let refusal = |name: &str, given: &[(&str, Value)], bytes: &[u8], len: usize| {
        build(name, given)
            .decode(at(0), bytes, &mut vec![0.0; len])
            .expect_err("refused")
            .to_string()
    };
    let nan = f32::NAN.to_le_bytes();
    assert_eq!(
        refusal("f16", &[], &3f32.to_le_bytes(), 0),
        "f16: the scale is 3, must be a power of two"
    );
    assert!(
        refusal("sign", &[], &nan, 0)
            .starts_with("sign: the mean magnitude is NaN, must be finite")
    );
    assert!(refusal("qsgd", &[], &nan, 0).starts_with("qsgd: the norm is NaN, must be finite"));
    assert!(refusal("sign", &[], &[0, 0, 0, 0, 2], 1).contains("bits after the last value"));
    let half = [("share", Value::Number(0.5))];
    let top_k = |count: u32, places: [u16; 2]| {
        let mut bytes = count.to_le_bytes().to_vec();
        bytes.extend([0; 8]);
        places.iter().for_each(|place| bytes.extend(place.to_le_bytes()));
        refusal("top-k", &half, &bytes, 4)
    };
    assert_eq!(top_k(3, [0, 1]), "top-k: the count of a block is 3, must be at most 2");
    assert_eq!(top_k(1, [0, 1]), "top-k: the sum of the counts is 1, must be 2");
    assert_eq!(top_k(2, [1, 1]), "top-k: index 1 follows index 1, but indices must ascend");
    assert_eq!(top_k(2, [1, 4]), "top-k: an index is 4, must be below 4");
}

fn coder(entry: &Entry) -> Coder {
    Coder::new(entry, &Options::defaults(entry.meta.options), 7)
}

#[test]
fn parts_of_messages_live_in_pooled_memory() {
    let pool = Pool::new();
    for entry in CODECS {
        let (mut coder, mut codec) = (coder(entry), build(entry.meta.name, &[]));
        let values = normals(1001, 2);
        let part = coder.pack(at(0), &values, &pool);
        assert_eq!(part.bytes(), 4 + entry.bytes(&Options::defaults(entry.meta.options), 1001));
        let out = coder.unpack(at(0), &part, 1001, &pool).expect("just packed");
        assert_eq!(*out, round_trip(&mut *codec, at(0), &values));
        let error = coder.unpack(at(0), &part, 1000, &pool).expect_err("too long");
        assert_eq!(error, CodecError::TooLong { given: 1001, most: 1000 });
        drop((part, out));
        let before = pool.allocated();
        drop(coder.pack(at(1), &values, &pool));
        assert_eq!(pool.allocated(), before);
        for bytes in [0, 3, 4, 20] {
            let cut = Part::Encoded { data: pool.copy(&[f32::from_bits(1001); 5]), bytes };
            assert!(coder.unpack(at(0), &cut, 1001, &pool).is_err(), "{}", entry.meta.name);
        }
    }
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn what_was_rounded_once_is_not_rounded_again() {
    let (pool, mut rng) = (Pool::new(), Rng::new(5, "rounding", 0));
    for entry in CODECS.iter().filter(|entry| entry.shape == CodecShape::Rounding) {
        let mut coder = coder(entry);
        for _ in 0..2000 {
            // Magnitudes far apart, with a largest one that likes to round up to a power of two.
            let spread = |rng: &mut Rng| (rng.normal() * 8.0).exp2() * rng.normal();
            let mut values: Vec<f32> = (0..9).map(|_| spread(&mut rng) as f32).collect();
            values.push(f32::from_bits(0x4bff_e000 + rng.below(0x4000) as u32));
            coder.round(&mut values, &pool);
            let once = values.clone();
            coder.round(&mut values, &pool);
            assert_eq!(values, once, "{}", entry.meta.name);
        }
    }
}

#[test]
fn formats_do_not_change_by_accident() {
    let values: Vec<f32> = (0..1000).map(|k| ((k * 7919 % 1000) as f32 - 500.0) / 64.0).collect();
    let digests = CODECS.iter().map(|entry| {
        // One norm for the whole vector where there is a choice.
        let grouped = entry.meta.options.iter().any(|key| key.name == "group");
        let given = grouped.then_some(("group", Value::Number(0.0)));
        let mut codec = build(entry.meta.name, given.as_slice());
        let mut bytes = vec![0; codec.bytes(values.len())];
        codec.encode(at(2), &values, &mut bytes);
        let mut digest = crate::state::Digest::default();
        digest.bytes(&bytes);
        (entry.meta.name, digest.0)
    });
    let wanted = [
        ("bf16", 0x8dee_aa2c_685b_b77f),
        ("f16", 0x22b8_1045_ba11_0893),
        ("f32", 0xcfaa_48d0_4686_d49f),
        ("power-sgd", 0xcfaa_48d0_4686_d49f),
        ("qsgd", 0xb6ab_d1de_8314_00e2),
        ("random-k", 0xaba9_fccf_9375_a054),
        ("sign", 0xca22_0641_74a6_1b68),
        ("tern-grad", 0x95b6_a9e8_3f9b_2586),
        ("top-k", 0x8f5c_78b0_6aa8_1766),
        ("unbiased-k", 0x17a8_9aa8_cb8a_40df),
    ];
    assert_eq!(digests.collect::<Vec<_>>(), wanted);
}
