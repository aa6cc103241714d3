//! The table of data sets that can be downloaded and verified.

use std::path::PathBuf;

use quelea_core::names;

/// One row of the table.
#[derive(Debug)]
pub struct DataSet {
    /// The name that people type.
    pub name: &'static str,
    /// What it holds.
    pub summary: &'static str,
    /// Under which terms, and whom to cite.
    pub terms: &'static str,
    /// Where it comes from.
    pub downloads: &'static [Download],
}

/// One file of the original address.
#[derive(Debug)]
pub struct Download {
    /// Where the authors, or whoever they entrusted, keep it.
    pub address: &'static str,
    /// Whether it is an archive (`.tar.gz`) of the files, to be unpacked, or one file that is kept
    /// as it comes.
    pub is_archive: bool,
    /// What is in it.
    pub files: &'static [ExpectedFile],
}

/// A file as the loaders read it, unpacked: `data_batch_1.bin` may lie there as
/// `data_batch_1.bin.xz`, and `train.en` as `train.en.gz`; the content is the same.
#[derive(Debug)]
pub struct ExpectedFile {
    /// Its name, unpacked.
    pub name: &'static str,
    /// Its length, unpacked.
    pub bytes: u64,
    /// Its checksum, unpacked. Packing the same content again, as distributions do, does not
    /// change it.
    pub sha256: &'static str,
}

impl DataSet {
    /// All files, in the order of the downloads.
    pub fn files(&self) -> impl Iterator<Item = &'static ExpectedFile> {
        self.downloads.iter().flat_map(|download| download.files)
    }

    /// Bytes of all files, unpacked.
    pub fn bytes(&self) -> u64 {
        self.files().map(|file| file.bytes).sum()
    }
}

impl Download {
    /// The name of the file at its address.
    pub fn name(&self) -> &'static str {
        self.address.rsplit('/').next().unwrap_or(self.address)
    }
}

/// The row of this name, or the nearest name if there is one.
pub fn find(name: &str) -> Result<&'static DataSet, Option<&'static str>> {
    names::find(DATA_SETS, |row| row.name, name)
}

/// Where downloads go unless told otherwise: `quelea/NAME` in the user's folder for data
/// (`$XDG_DATA_HOME`, or `~/.local/share`). None where there is no home.
pub fn home(name: &str) -> Option<PathBuf> {
    let folder = |variable: &str| {
        std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
    };
    let data = folder("XDG_DATA_HOME").or_else(|| {
        let home = folder("HOME").or_else(|| folder("USERPROFILE"));
        home.map(|home| home.join(".local/share"))
    });
    data.map(|data| data.join("quelea").join(name))
}

/// All data sets, by name. The checksums were computed from the files; those of MNIST are the
/// published ones.
pub const DATA_SETS: &[DataSet] = &[
    DataSet {
        name: "cifar10",
        summary: "60,000 colour images of 32×32 in ten classes",
        terms: "none stated by the authors; cite Krizhevsky 2009, Learning Multiple Layers of \
                Features from Tiny Images",
        downloads: &[Download {
            address: "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            is_archive: true,
            files: &[
                content(
                    "data_batch_1.bin",
                    30_730_000,
                    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                ),
                content(
                    "data_batch_2.bin",
                    30_730_000,
                    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                ),
                content(
                    "data_batch_3.bin",
                    30_730_000,
                    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                ),
                content(
                    "data_batch_4.bin",
                    30_730_000,
                    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                ),
                content(
                    "data_batch_5.bin",
                    30_730_000,
                    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                ),
                content(
                    "test_batch.bin",
                    30_730_000,
                    "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
                ),
            ],
        }],
    },
    DataSet {
        name: "fashion-mnist",
        summary: "70,000 grey images of 28×28 of clothing in ten classes",
        terms: "MIT; cite Xiao, Rasul and Vollgraf 2017, Fashion-MNIST",
        downloads: &[
            single(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/train-images-idx3-ubyte.gz",
                &[content(
                    "train-images-idx3-ubyte",
                    47_040_016,
                    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                )],
            ),
            single(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/train-labels-idx1-ubyte.gz",
                &[content(
                    "train-labels-idx1-ubyte",
                    60_008,
                    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                )],
            ),
            single(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/t10k-images-idx3-ubyte.gz",
                &[content(
                    "t10k-images-idx3-ubyte",
                    7_840_016,
                    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                )],
            ),
            single(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/t10k-labels-idx1-ubyte.gz",
                &[content(
                    "t10k-labels-idx1-ubyte",
                    10_008,
                    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                )],
            ),
        ],
    },
    DataSet {
        name: "mnist",
        summary: "70,000 grey images of 28×28 of handwritten digits",
        terms: "none stated by the authors; cite LeCun, Cortes and Burges 1998, The MNIST database \
                of handwritten digits (kept by the CVDF)",
        downloads: &[
            single(
                "https://storage.googleapis.com/cvdf-datasets/mnist/train-images-idx3-ubyte.gz",
                &[content(
                    "train-images-idx3-ubyte",
                    47_040_016,
                    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                )],
            ),
            single(
                "https://storage.googleapis.com/cvdf-datasets/mnist/train-labels-idx1-ubyte.gz",
                &[content(
                    "train-labels-idx1-ubyte",
                    60_008,
                    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                )],
            ),
            single(
                "https://storage.googleapis.com/cvdf-datasets/mnist/t10k-images-idx3-ubyte.gz",
                &[content(
                    "t10k-images-idx3-ubyte",
                    7_840_016,
                    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                )],
            ),
            single(
                "https://storage.googleapis.com/cvdf-datasets/mnist/t10k-labels-idx1-ubyte.gz",
                &[content(
                    "t10k-labels-idx1-ubyte",
                    10_008,
                    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                )],
            ),
        ],
    },
    DataSet {
        name: "multi30k",
        summary: "31,014 English sentences about pictures with their German translations",
        terms: "research and education; cite Elliott, Frank, Sima'an and Specia 2016, Multi30K",
        downloads: &[
            single(
                "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/train.en.gz",
                &[content(
                    "train.en",
                    1_801_238,
                    "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
                )],
            ),
            single(
                "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/train.de.gz",
                &[content(
                    "train.de",
                    2_110_398,
                    "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
                )],
            ),
            single(
                "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/val.en.gz",
                &[content(
                    "val.en",
                    63_297,
                    "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
                )],
            ),
            single(
                "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/val.de.gz",
                &[content(
                    "val.de",
                    75_981,
                    "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
                )],
            ),
            single(
                "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/test_2016_flickr.en.gz",
                &[content(
                    "test_2016_flickr.en",
                    62_076,
                    "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
                )],
            ),
            single(
                "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/test_2016_flickr.de.gz",
                &[content(
                    "test_2016_flickr.de",
                    70_649,
                    "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
                )],
            ),
        ],
    },
    DataSet {
        name: "tiny-shakespeare",
        summary: "1.1 MB of plays, for language models",
        terms: "public domain; put together by Karpathy 2015 for char-rnn",
        downloads: &[single(
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            &[content(
                "input.txt",
                1_115_394,
                "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            )],
        )],
    },
];

const fn single(address: &'static str, files: &'static [ExpectedFile]) -> Download {
    Download { address, is_archive: false, files }
}

const fn content(name: &'static str, bytes: u64, sha256: &'static str) -> ExpectedFile {
    ExpectedFile { name, bytes, sha256 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_and_well_formed() {
        assert!(DATA_SETS.is_sorted_by(|a, b| a.name < b.name));
        for row in DATA_SETS {
            for file in row.files() {
                assert_eq!(file.sha256.len(), 64, "{}", file.name);
                assert!(
                    file.sha256.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
                );
            }
            for download in row.downloads.iter().filter(|download| !download.is_archive) {
                let [file] = download.files else { panic!("one file each: {}", download.name()) };
                let plain = download.name().trim_end_matches(".gz");
                assert_eq!(plain, file.name);
            }
        }
        assert_eq!(find("mnsit").expect_err("a slip"), Some("mnist"));
        assert_eq!(find("cifar10").expect("a row").bytes(), 6 * 30_730_000);
    }
}
