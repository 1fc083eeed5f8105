//! Pictures in files: PNG and JPEG.

use std::io::Cursor;

use png::{ColorType, Limits, Transformations};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
const JPEG: &[u8] = b"\xff\xd8";

/// Decodes a picture into bytes, ordered by channel, row and column. `shape` is the expected number of
/// channels, rows and columns. Palettes and other depths become eight bits per channel.
///
/// # Errors
/// If the file is neither PNG nor JPEG, is damaged, or has another shape. The error is one line of text.
pub fn decode(file: &[u8], shape: [usize; 3]) -> Result<Vec<u8>, String> {
    let interleaved = match file {
        file if file.starts_with(PNG) => png(file, shape)?,
        file if file.starts_with(JPEG) => jpeg(file, shape)?,
        _ => return Err("no picture in PNG or JPEG".to_owned()),
    };
    let channels = shape[0];
    let plane = |channel: usize| interleaved.iter().skip(channel).step_by(channels).copied();
    Ok((0..channels).flat_map(plane).collect())
}

fn png(file: &[u8], shape: [usize; 3]) -> Result<Vec<u8>, String> {
    let broken = |error: png::DecodingError| format!("a broken PNG: {error}");
    let bytes = shape.iter().product::<usize>();
    let limits = Limits { bytes: 4 * bytes + (64 << 20) };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(file), limits);
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let mut reader = decoder.read_info().map_err(broken)?;
    let channels = match reader.output_color_type().0 {
        ColorType::Grayscale => 1,
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgb | ColorType::Indexed => 3,
        ColorType::Rgba => 4,
    };
    let (rows, columns) = (reader.info().height as usize, reader.info().width as usize);
    check([channels, rows, columns], shape)?;
    let mut pixels = vec![0; reader.output_buffer_size().unwrap_or(0)];
    reader.next_frame(&mut pixels).map_err(broken)?;
    match pixels.len() == bytes {
        true => Ok(pixels),
        false => Err(format!("a broken PNG: {} bytes, expected {bytes}", pixels.len())),
    }
}

fn jpeg(file: &[u8], shape: [usize; 3]) -> Result<Vec<u8>, String> {
    // The decoder looks for a frame behind bytes that are none of a segment, too; encoders write none.
    let factors = sampling(file).ok_or("a broken JPEG: its segments lead to no frame")?;
    // The decoder panics where colour is sampled more finely than brightness, which no encoder does.
    if factors[1..].iter().any(|it| *it != 0x11 && *it != factors[0]) {
        return Err("a JPEG whose colour is sampled more finely than its brightness".to_owned());
    }
    // What a file lacks would be grey otherwise.
    let options = DecoderOptions::default().set_strict_mode(true);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    let broken = |error: &dyn std::fmt::Display| {
        let error = error.to_string();
        format!("a broken JPEG: {}", error.lines().next().unwrap_or_default())
    };
    decoder.decode_headers().map_err(|error| broken(&error))?;
    let info = decoder.info().ok_or("a broken JPEG: no header")?;
    let channels = usize::from(info.components);
    check([channels, info.height.into(), info.width.into()], shape)?;
    let colours = if channels == 1 { ColorSpace::Luma } else { ColorSpace::RGB };
    decoder.set_options(options.jpeg_set_out_colorspace(colours));
    let pixels = decoder.decode().map_err(|error| broken(&error))?;
    let expected = shape.iter().product::<usize>();
    match pixels.len() == expected {
        true => Ok(pixels),
        false => Err(format!("a JPEG of {channels} channels, expected 1 or 3")),
    }
}

/// Returns the sampling factors of the components of a JPEG, from the header of its frame: the horizontal
/// factor in the upper four bits, the vertical one in the lower.
fn sampling(file: &[u8]) -> Option<Vec<u8>> {
    let mut rest = file.get(2..)?;
    loop {
        // Any number of bytes FF may stand before a marker, and nothing else.
        while rest.get(..2)? == [0xff, 0xff] {
            rest = &rest[1..];
        }
        let (0xff, marker) = (rest[0], rest[1]) else { return None };
        let length = usize::from(u16::from_be_bytes([*rest.get(2)?, *rest.get(3)?]));
        // The frames of JPEG are C0 to CF but for tables of Huffman and arithmetic codes.
        if matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc) {
            let components = rest.get(10..2 + length)?.as_chunks::<3>().0;
            return Some(components.iter().map(|component| component[1]).collect())
                .filter(|factors: &Vec<u8>| !factors.is_empty());
        }
        rest = rest.get(2 + length.max(2)..)?;
    }
}

/// Refuses a picture of another shape, before it takes any memory.
fn check(found: [usize; 3], expected: [usize; 3]) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let told = |[channels, rows, columns]: [usize; 3]| {
        format!(
            "{columns}x{rows} pixels of {channels} channel{}",
            if channels == 1 { "" } else { "s" }
        )
    };
    Err(format!("{}, expected {} as the model reads them", told(found), told(expected)))
}
