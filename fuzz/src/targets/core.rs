//! Encoded vectors, and the text formats that the core reads: LIBSVM and topologies.

use quelea_core::codec::{CODECS, Coder, VectorId};
use quelea_core::message::Part;
use quelea_core::options::{Options, Value};
use quelea_core::payload::Pool;
use quelea_core::problems::dataset::Dataset;
use quelea_core::topology::{self, TopologyRequest};

use crate::target::{FuzzTarget, InputFolder, InputFormat, as_it_is};

/// The targets of `quelea-core`.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget {
        name: "codec",
        function: "quelea_core::codec::Coder::unpack, of every codec",
        format: InputFormat::Binary,
        seeds: encoded,
        repair: as_it_is,
        read: decode,
        share: 8,
        memory_bytes: 1 << 20,
    },
    FuzzTarget {
        name: "libsvm",
        function: "quelea_core::problems::dataset::Dataset::parse",
        format: InputFormat::Text,
        seeds: samples,
        repair: as_it_is,
        read: read_samples,
        share: 8,
        memory_bytes: 4 << 20,
    },
    FuzzTarget {
        name: "topology-file",
        function: "quelea_core::topology, `custom`",
        format: InputFormat::Text,
        seeds: topologies,
        repair: as_it_is,
        read: read_topology,
        share: 8,
        memory_bytes: 8 << 20,
    },
];

/// The longest vector.
const MOST: usize = 300;

/// Which codec, then the options' variant, then what it wrote.
fn encoded() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (place, entry) in CODECS.iter().enumerate() {
        for (variant, len) in [(0, 0), (0, 5), (0, MOST), (1, 77)] {
            let mut coder = Coder::new(entry, &options(place, variant), 1);
            let values: Vec<f32> = (0..len).map(|k| (k as f32 - 40.0) / 7.0).collect();
            let part = coder.pack(VectorId::default(), &values, &Pool::new());
            if let Part::Encoded { data, bytes } = part {
                let mut seed = vec![place as u8, variant];
                seed.extend(data.iter().flat_map(|word| word.to_le_bytes()).take(bytes));
                seeds.push(seed);
            }
        }
    }
    seeds
}

/// The defaults, or another share where there is one, so that sparse codecs keep more than one element.
fn options(place: usize, variant: u8) -> Options {
    let keys = CODECS[place].meta.options;
    let share = keys.iter().any(|key| key.name == "share") && variant % 2 == 1;
    let given = share.then(|| ("share".to_string(), Value::Number(0.3)));
    Options::check(keys, given.into_iter().collect::<Vec<_>>()).expect("an option that it has")
}

fn decode(bytes: &[u8], _: &InputFolder) {
    let [place, variant, rest @ ..] = bytes else { return };
    let place = usize::from(*place) % CODECS.len();
    let mut words = vec![0f32; rest.len().div_ceil(4)];
    for (word, four) in words.iter_mut().zip(rest.chunks(4)) {
        let mut padded = [0; 4];
        padded[..four.len()].copy_from_slice(four);
        *word = f32::from_le_bytes(padded);
    }
    let pool = Pool::new();
    let part = Part::Encoded { data: pool.copy(&words), bytes: rest.len() };
    let mut coder = Coder::new(&CODECS[place], &options(place, *variant), 1);
    if let Ok(values) = coder.unpack(VectorId::default(), &part, MOST, &pool) {
        assert!(values.len() <= MOST);
    }
}

fn samples() -> Vec<Vec<u8>> {
    let texts = [
        "+1 1:0.5 3:-2\n-1 2:1e3 # a comment\n",
        "0 1:1\n1 1:2 2:3\n\n1 7:0.25\r\n",
        "2 100000:1\n1 1:0\n",
        "1\n1\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

fn read_samples(bytes: &[u8], _: &InputFolder) {
    let Ok(read) = Dataset::parse(bytes) else { return };
    for sample in read.samples() {
        assert!(sample.indices.iter().all(|index| (*index as usize) < read.features()));
        assert!(sample.values.iter().all(|value| value.is_finite()));
    }
    let (rest, aside) = read.hold_out(0.2, 1);
    assert_eq!(rest.len() + aside.len(), read.len());
}

fn topologies() -> Vec<Vec<u8>> {
    let texts = [
        "0 1\n1 2\n2 3\n3 0\n",
        "0 -> 1 1/3\n1 -> 2 0.5\n2 -> 0\n---\n3 -> 0 1/4\n0 -> 3\n",
        "matrix\n1/2 1/2 0 0\n1/2 0 1/2 0\n0 1/2 0 1/2\n0 0 1/2 1/2\n",
        "# a comment\n0 1 0.25 # another\n\n2 3 0.25\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

fn read_topology(bytes: &[u8], _: &InputFolder) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let entry = topology::find("custom").expect("there is one");
    let hosts = [0, 1, 2, 3];
    let options = Options::defaults(entry.meta.options);
    let _ = entry.build(&TopologyRequest {
        hosts: &hosts,
        seed: 1,
        options: &options,
        text: Some(text),
    });
}
