//! Folders of JPEG and PNG files, a subfolder for each class, as ImageNet is usually kept.
//!
//! Only names are held in memory; an image is decoded, cut and brought to size when it is needed,
//! by the loader's threads.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quelea_core::random::Rng;

use super::decode::decode;
use super::resample::{CropBox, Picture, resample};
use super::{Crop, ImageShape, Images, Normalisation, Split};
use crate::error::DataError;

/// Sizes of the images that a folder gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FolderOptions {
    /// Sides of an image as the network sees it.
    pub side: usize,
    /// For evaluation, the shorter side is brought to this length and the middle cut out.
    pub resized: usize,
}

impl Default for FolderOptions {
    fn default() -> FolderOptions {
        FolderOptions { side: 224, resized: 256 }
    }
}

/// Reads the names under `train/CLASS/` and `val/CLASS/` (or `validation`, `test`). Classes are
/// numbered in the order of their names.
pub fn folder(root: &Path, options: FolderOptions) -> Result<Split, DataError> {
    assert!(options.side > 0 && options.side <= options.resized, "a part of the resized image");
    let train = Folder::list(&root.join("train"), None, options)?;
    let names = ["val", "validation", "test"];
    let test = names.iter().map(|name| root.join(name)).find(|path| path.is_dir());
    let test = test.ok_or_else(|| DataError::Missing {
        folder: root.to_path_buf(),
        wanted: "folder val, validation or test beside train".to_string(),
    })?;
    let test = Folder::list(&test, Some(&train.classes), options)?;
    Ok(Split { train: Arc::new(train), test: Arc::new(test) })
}

struct Folder {
    root: PathBuf,
    classes: Arc<[String]>,
    /// Class and name of each file, in the order of both.
    files: Vec<(u32, Box<str>)>,
    options: FolderOptions,
    normalisation: Normalisation,
}

impl Folder {
    /// Lists a folder; its classes must be among the `known` ones.
    fn list(
        root: &Path,
        known: Option<&Arc<[String]>>,
        options: FolderOptions,
    ) -> Result<Folder, DataError> {
        let found = names(root, |entry| entry.is_dir())?;
        if found.is_empty() {
            let wanted = "subfolder; one for each class is expected".to_string();
            return Err(DataError::Missing { folder: root.to_path_buf(), wanted });
        }
        let classes = known.map_or_else(|| Arc::from(found.clone()), Arc::clone);
        let mut files = Vec::new();
        for class in found {
            let path = root.join(&class);
            let label = classes.binary_search(&class).map_err(|_| {
                DataError::damaged(&path, "is a class that the training images do not have")
            })?;
            let images = names(&path, is_image)?;
            if images.is_empty() {
                let wanted = "JPEG or PNG file".to_string();
                return Err(DataError::Missing { folder: path, wanted });
            }
            files.extend(images.into_iter().map(|name| (label as u32, name.into_boxed_str())));
        }
        let normalisation =
            Normalisation { mean: vec![0.485, 0.456, 0.406], deviation: vec![0.229, 0.224, 0.225] };
        Ok(Folder { root: root.to_path_buf(), classes, files, options, normalisation })
    }
}

impl Images for Folder {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn shape(&self) -> ImageShape {
        ImageShape { channels: 3, height: self.options.side, width: self.options.side }
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> u32 {
        self.files[index].0
    }

    fn pixels(&self, index: usize, crop: Crop<'_>, out: &mut [u8]) -> Result<(), DataError> {
        let (class, name) = &self.files[index];
        let path = self.root.join(&self.classes[*class as usize]).join(&**name);
        let picture = decode(&path)?;
        let part = match crop {
            Crop::Centre => centre(&picture, self.options),
            Crop::Random(rng) => random_part(&picture, rng),
        };
        resample(&picture, part, self.options.side, out);
        Ok(())
    }

    /// That of ImageNet, which networks trained on photographs are used to.
    fn normalisation(&self) -> &Normalisation {
        &self.normalisation
    }

    fn is_decoded_late(&self) -> bool {
        true
    }
}

impl std::fmt::Debug for Folder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} images under {}", self.files.len(), self.root.display())
    }
}

/// Decodes a file and cuts parts out of it, for [`crate::untrusted`].
pub(crate) fn show(path: &Path) -> Result<(), DataError> {
    let (picture, options) = (decode(path)?, FolderOptions { side: 8, resized: 9 });
    let mut out = vec![0; 3 * options.side * options.side];
    resample(&picture, centre(&picture, options), options.side, &mut out);
    let part = random_part(&picture, &mut Rng::new(1, "show", 0));
    resample(&picture, part, options.side, &mut out);
    Ok(())
}

/// The names of the entries that are wanted, sorted. Hidden ones are passed over.
fn names(folder: &Path, is_wanted: fn(&Path) -> bool) -> Result<Vec<String>, DataError> {
    let wrong = DataError::reading(folder);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(&wrong)? {
        let path = entry.map_err(&wrong)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| DataError::damaged(&path, "has a name that is not UTF-8"))?;
        if !name.starts_with('.') && is_wanted(&path) {
            names.push(name.to_string());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn is_image(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    ["jpg", "jpeg", "png"].iter().any(|known| ending.eq_ignore_ascii_case(known))
}

/// The middle of the image after its shorter side was brought to `resized`.
fn centre(picture: &Picture, options: FolderOptions) -> CropBox {
    let shorter = picture.width.min(picture.height) as f64;
    let side = shorter * options.side as f64 / options.resized as f64;
    CropBox {
        left: (picture.width as f64 - side) / 2.0,
        top: (picture.height as f64 - side) / 2.0,
        width: side,
        height: side,
    }
}

/// A part of 8 to 100 % of the area with sides of 3:4 to 4:3 (Szegedy et al. 2015), or after ten
/// draws that do not fit the largest part in the middle whose sides are not beyond that.
fn random_part(picture: &Picture, rng: &mut Rng) -> CropBox {
    const RATIO: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);
    let (whole_width, whole_height) = (picture.width as f64, picture.height as f64);
    for _ in 0..10 {
        let area = whole_width * whole_height * (0.08 + 0.92 * rng.uniform());
        let logarithm = RATIO.0.ln() + (RATIO.1 / RATIO.0).ln() * rng.uniform();
        let ratio = logarithm.exp();
        let (width, height) = ((area * ratio).sqrt().round(), (area / ratio).sqrt().round());
        if (1.0..=whole_width).contains(&width) && (1.0..=whole_height).contains(&height) {
            let mut draw = |room: f64| rng.below(room as u64 + 1) as f64;
            let (top, left) = (draw(whole_height - height), draw(whole_width - width));
            return CropBox { left, top, width, height };
        }
    }
    let width = whole_width.min((whole_height * RATIO.1).round()).max(1.0);
    let height = whole_height.min((whole_width / RATIO.0).round()).max(1.0);
    CropBox { left: (whole_width - width) / 2.0, top: (whole_height - height) / 2.0, width, height }
}
