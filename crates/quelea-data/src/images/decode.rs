//! JPEG and PNG files to pictures of red, green and blue.

use std::io::Cursor;
use std::path::Path;

use png::{ColorType, Transformations};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::resample::Picture;
use crate::error::DataError;
use crate::files::Content;

/// Larger images are refused before memory is taken for them.
const SIDE_MAX: usize = 16_384;
const PIXELS_MAX: usize = 100_000_000;
/// A longer file is no picture that is read here.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Pixels that one byte of a JPEG can stand for: a block of 64 takes a bit at least.
const JPEG_PIXELS_PER_BYTE: usize = 512;
/// Bytes that one byte of a PNG can stand for: what DEFLATE reaches at most.
const PNG_BYTES_PER_BYTE: usize = 1032;

/// Decodes a file, told by its first bytes: ImageNet has a PNG whose name ends in JPEG.
pub(super) fn decode(path: &Path) -> Result<Picture, DataError> {
    let bytes = Content::plain(path, FILE_BYTES_MAX)?;
    let decoded = if bytes.starts_with(&[0xff, 0xd8]) {
        decode_jpeg(&bytes)
    } else if bytes.starts_with(b"\x89PNG") {
        decode_png(&bytes)
    } else {
        Err("is neither JPEG nor PNG".to_string())
    };
    decoded.map_err(|problem| DataError::damaged(path, problem))
}

fn decode_jpeg(bytes: &[u8]) -> Result<Picture, String> {
    // The decoder fills what is missing with grey; a file that was cut off lacks its end mark.
    let ending = &bytes[bytes.len() / 2..];
    if !ending.windows(2).any(|pair| pair == [0xff, 0xd9]) {
        return Err("ends too early: the file was cut off".to_string());
    }
    decode_jpeg_with(bytes, DecoderOptions::default())
}

fn decode_jpeg_with(bytes: &[u8], options: DecoderOptions) -> Result<Picture, String> {
    let options = options
        .jpeg_set_out_colorspace(ColorSpace::RGB)
        .set_max_width(SIDE_MAX)
        .set_max_height(SIDE_MAX);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let wrong = |error: &dyn std::fmt::Display| format!("is damaged: {error}");
    decoder.decode_headers().map_err(|error| wrong(&error))?;
    let (width, height) = decoder.dimensions().ok_or("has no size")?;
    check_size(width, height)?;
    check_content(width * height, bytes.len().saturating_mul(JPEG_PIXELS_PER_BYTE))?;
    let rgb = decoder.decode().map_err(|error| wrong(&error))?;
    picture(width, height, rgb)
}

fn decode_png(bytes: &[u8]) -> Result<Picture, String> {
    let wrong = |error: png::DecodingError| format!("is damaged: {error}");
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(Transformations::normalize_to_color8());
    let header = decoder.read_header_info().map_err(wrong)?;
    let (width, height) = (header.width as usize, header.height as usize);
    check_size(width, height)?;
    let bits = width * height * header.bits_per_pixel();
    check_content(bits / 8, bytes.len().saturating_mul(PNG_BYTES_PER_BYTE))?;
    let mut reader = decoder.read_info().map_err(wrong)?;
    let size = reader.output_buffer_size().ok_or("is too large")?;
    let mut pixels = vec![0; size];
    let frame = reader.next_frame(&mut pixels).map_err(wrong)?;
    pixels.truncate(frame.buffer_size());
    let rgb = match frame.color_type {
        ColorType::Rgb => pixels,
        ColorType::Rgba => pixels.chunks_exact(4).flat_map(|p| [p[0], p[1], p[2]]).collect(),
        ColorType::Grayscale => pixels.iter().flat_map(|grey| [*grey; 3]).collect(),
        ColorType::GrayscaleAlpha => pixels.chunks_exact(2).flat_map(|p| [p[0]; 3]).collect(),
        ColorType::Indexed => return Err("has colours that were not looked up".to_string()),
    };
    picture(width, height, rgb)
}

fn check_size(width: usize, height: usize) -> Result<(), String> {
    let is_good = (1..=SIDE_MAX).contains(&width)
        && (1..=SIDE_MAX).contains(&height)
        && width * height <= PIXELS_MAX;
    is_good.then_some(()).ok_or_else(|| {
        format!("is {width}×{height}; at most {PIXELS_MAX} pixels and {SIDE_MAX} a side are read")
    })
}

/// A header that promises more than the file can hold costs no memory.
fn check_content(promised: usize, possible: usize) -> Result<(), String> {
    if promised <= possible {
        return Ok(());
    }
    Err("is far too short for its size: the file was cut off or its header is wrong".to_string())
}

fn picture(width: usize, height: usize, rgb: Vec<u8>) -> Result<Picture, String> {
    if rgb.len() != width * height * 3 {
        return Err(format!("gave {} values for {width}×{height} pixels", rgb.len()));
    }
    Ok(Picture { width, height, rgb })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_that_promises_more_than_its_bytes_can_hold_costs_no_memory() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/images"));
        let read = |name: &str| std::fs::read(folder.join(name)).expect("a file");
        let mut jpeg = read("baseline.jpg");
        let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("a frame");
        // Height and width stand behind the length and the precision.
        jpeg[frame + 5..frame + 9].copy_from_slice(&[0x20, 0, 0x20, 0]);
        let told = decode_jpeg(&jpeg).expect_err("8192×8192 in 2 kB");
        assert!(told.contains("far too short for its size"), "{told}");
        let mut png = read("rgb.png");
        png[16..24].copy_from_slice(&[0, 0, 0x20, 0, 0, 0, 0x20, 0]);
        let mut sum = flate2::Crc::new();
        sum.update(&png[12..29]);
        png[29..33].copy_from_slice(&sum.sum().to_be_bytes());
        let told = decode_png(&png).expect_err("8192×8192 in 1 kB");
        assert!(told.contains("far too short for its size"), "{told}");
    }

    #[test]
    fn a_jpeg_has_the_same_pixels_with_and_without_vector_instructions() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/images"));
        for name in ["baseline.jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg"] {
            let bytes = std::fs::read(folder.join(name)).expect("a file");
            let plain = DecoderOptions::default().set_use_unsafe(false);
            let plain = decode_jpeg_with(&bytes, plain).expect("good");
            assert!(decode_jpeg(&bytes).expect("good").rgb == plain.rgb, "{name}");
        }
    }
}
