//! The IDX files of MNIST, Fashion-MNIST and their kin, plain or packed.

use std::path::Path;
use std::sync::Arc;

use super::{ImageShape, InMemory, Split};
use crate::error::DataError;
use crate::files::{self, Content};

/// Limits beyond which a header is taken for damaged.
const IMAGES_MAX: u32 = 10_000_000;
const SIDE_MAX: u32 = 1024;
const BYTES_MAX: usize = 16 << 30;

/// Reads `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the two `t10k-…` of a folder.
pub fn idx(folder: &Path) -> Result<Split, DataError> {
    let (train, test) = std::thread::scope(|scope| {
        let test = scope.spawn(|| part(folder, "t10k"));
        (part(folder, "train"), test.join().expect("reading does not panic"))
    });
    let ((train, train_path), (test, test_path)) = (train?, test?);
    if train.shape != test.shape {
        let (train, test) = (train.shape, test.shape);
        let problem = format!(
            "holds images of {}×{}, but {} of {}×{}",
            test.height,
            test.width,
            train_path.display(),
            train.height,
            train.width
        );
        return Err(DataError::damaged(&test_path, problem));
    }
    let most = train.labels.iter().chain(&test.labels).max().copied().unwrap_or(0);
    let classes = class_names(folder, usize::from(most) + 1);
    let build = |part: IdxSet| InMemory::new(part.shape, classes.clone(), part.labels, part.pixels);
    let train = build(train);
    let test = build(test).normalised_like(&train);
    Ok(Split { train: Arc::new(train), test: Arc::new(test) })
}

struct IdxSet {
    shape: ImageShape,
    labels: Vec<u8>,
    pixels: Vec<u8>,
}

fn part(folder: &Path, name: &str) -> Result<(IdxSet, std::path::PathBuf), DataError> {
    let path = files::require(folder, &format!("{name}-images-idx3-ubyte"))?;
    let (shape, pixels) = read_images(&path)?;
    let labels_path = files::require(folder, &format!("{name}-labels-idx1-ubyte"))?;
    let labels = read_labels(&labels_path)?;
    let images = pixels.len() / shape.len();
    if images != labels.len() {
        let problem =
            format!("holds {} labels, but {} holds {images} images", labels.len(), path.display());
        return Err(DataError::damaged(&labels_path, problem));
    }
    Ok((IdxSet { shape, labels, pixels }, path))
}

fn read_images(path: &Path) -> Result<(ImageShape, Vec<u8>), DataError> {
    let mut content = Content::open(path)?;
    let [count, height, width] = header(&mut content, path, "images")?;
    if height == 0 || width == 0 || height > SIDE_MAX || width > SIDE_MAX {
        let problem =
            format!("says that its images are {height}×{width}; sides of 1 to {SIDE_MAX} are read");
        return Err(DataError::damaged(path, problem));
    }
    let shape = ImageShape { channels: 1, height: height as usize, width: width as usize };
    let len = shape.len() * count as usize;
    if len > BYTES_MAX {
        let problem = format!("says that it holds {count} images of {height}×{width}: too many");
        return Err(DataError::damaged(path, problem));
    }
    let pixels = content.take(len)?;
    content.end()?;
    Ok((shape, pixels))
}

fn read_labels(path: &Path) -> Result<Vec<u8>, DataError> {
    let mut content = Content::open(path)?;
    let [count] = header(&mut content, path, "labels")?;
    let labels = content.take(count as usize)?;
    content.end()?;
    Ok(labels)
}

/// The sizes of the `N` dimensions, of which the first is checked.
fn header<const N: usize>(
    content: &mut Content,
    path: &Path,
    what: &str,
) -> Result<[u32; N], DataError> {
    let mut words = [[0u8; 4]; N];
    let mut magic = [0; 4];
    content.fill(&mut magic)?;
    // 8 stands for unsigned bytes, then comes the number of dimensions.
    if magic != [0, 0, 8, N as u8] {
        let problem = format!(
            "is no IDX file of {what}: it begins with {magic:02x?}, not [00, 00, 08, {N:02x}]"
        );
        return Err(DataError::damaged(path, problem));
    }
    for word in &mut words {
        content.fill(word)?;
    }
    let sizes = words.map(u32::from_be_bytes);
    if sizes[0] == 0 || sizes[0] > IMAGES_MAX {
        let problem = format!("says that it holds {} {what}; 1 to {IMAGES_MAX} are read", sizes[0]);
        return Err(DataError::damaged(path, problem));
    }
    Ok(sizes)
}

/// The names of Fashion-MNIST where the folder is called so; numbers elsewhere.
fn class_names(folder: &Path, count: usize) -> Vec<String> {
    const FASHION: [&str; 10] = [
        "t-shirt",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ];
    let is_fashion = folder.to_string_lossy().to_lowercase().contains("fashion");
    if is_fashion && count == FASHION.len() {
        return FASHION.map(String::from).to_vec();
    }
    (0..count).map(|class| class.to_string()).collect()
}
