//! Named tensors in one safetensors file, written whole or not at all.
//!
//! A file appears under its name only when all of it is on disk: it is written beside its place, flushed to the
//! device, and renamed. A reader never sees half of one.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use tch::{Device, Kind, Tensor};

use crate::error::PolicyError;

/// Writes `bytes` to `path` so that `path` holds either what it held before or all of `bytes`, power loss included.
/// Missing parent folders are made.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), PolicyError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(PolicyError::write(parent))?;
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    let mut file = File::create(partial).map_err(PolicyError::write(partial))?;
    file.write_all(bytes).map_err(PolicyError::write(partial))?;
    file.sync_all().map_err(PolicyError::write(partial))?;
    drop(file);
    fs::rename(partial, path).map_err(PolicyError::write(path))?;
    // The rename itself is durable only once the folder is.
    File::open(parent).and_then(|folder| folder.sync_all()).map_err(PolicyError::write(parent))
}

/// Writes `tensors` and string `metadata` to a safetensors file at `path`, atomically.
pub fn write_tensors(
    path: &Path,
    tensors: &[(String, Tensor)],
    metadata: &BTreeMap<String, String>,
) -> Result<(), PolicyError> {
    write_atomically(path, &tensor_bytes(tensors, metadata, path)?)
}

/// The bytes of a safetensors file; `path` names it in errors. The same content gives the same bytes. Tensors of any
/// device are accepted; kinds are f32, f64, f16, bf16, i64, i32 and bool.
pub fn tensor_bytes(
    tensors: &[(String, Tensor)],
    metadata: &BTreeMap<String, String>,
    path: &Path,
) -> Result<Vec<u8>, PolicyError> {
    let bad = |reason: String| PolicyError::TensorFile { path: path.to_path_buf(), reason };
    let mut data = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let dtype = dtype_of(tensor.kind()).ok_or_else(|| bad(format!("`{name}` has kind {:?}", tensor.kind())))?;
        let tensor = tensor.detach().to_device(Device::Cpu).contiguous();
        let mut bytes = vec![0u8; tensor.numel() * tensor.kind().elt_size_in_bytes()];
        tensor.copy_data_u8(&mut bytes, tensor.numel());
        data.push((name, dtype, tensor.size().iter().map(|&n| n as usize).collect::<Vec<_>>(), bytes));
    }
    let mut views = Vec::with_capacity(data.len());
    for (name, dtype, shape, bytes) in &data {
        let view = TensorView::new(*dtype, shape.clone(), bytes).map_err(|error| bad(error.to_string()))?;
        views.push((name.as_str(), view));
    }
    // The library writes metadata in the order of a hash map, so more than one key would make the bytes depend on
    // the process. The keys are folded into one JSON object beside the `format` that transformers asks for.
    let header = match metadata.is_empty() {
        true => HashMap::from([("format".to_owned(), "pt".to_owned())]),
        false => {
            let folded = serde_json::to_string(metadata).map_err(PolicyError::json(path))?;
            HashMap::from([("trace".to_owned(), folded)])
        }
    };
    serialize(views, Some(header)).map_err(|error| bad(error.to_string()))
}

/// The content of a safetensors file.
#[derive(Debug)]
pub struct TensorFile {
    /// Tensors by name, on the device asked for.
    pub tensors: BTreeMap<String, Tensor>,
    /// The metadata given to [`write_tensors`]; empty for files of other programs.
    pub metadata: BTreeMap<String, String>,
}

/// Reads a safetensors file. Every tensor keeps its kind.
pub fn read_tensors(path: &Path, device: Device) -> Result<TensorFile, PolicyError> {
    let bytes = fs::read(path).map_err(PolicyError::read(path))?;
    let bad = |reason: String| PolicyError::TensorFile { path: path.to_path_buf(), reason };
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| bad(error.to_string()))?;
    let metadata = match header.metadata().as_ref().and_then(|metadata| metadata.get("trace")) {
        Some(folded) => serde_json::from_str(folded).map_err(PolicyError::json(path))?,
        None => BTreeMap::new(),
    };
    let file = SafeTensors::deserialize(&bytes).map_err(|error| bad(error.to_string()))?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.iter() {
        let kind = kind_of(view.dtype()).ok_or_else(|| bad(format!("`{name}` has dtype {:?}", view.dtype())))?;
        let shape: Vec<i64> = view.shape().iter().map(|&n| n as i64).collect();
        let tensor = Tensor::f_from_data_size(view.data(), &shape, kind).map_err(|error| bad(error.to_string()))?;
        tensors.insert(name.to_owned(), tensor.to_device(device));
    }
    Ok(TensorFile { tensors, metadata })
}

impl TensorFile {
    /// Takes tensor `name` out of the file, as kind `kind`, after a check of its shape. `place` names the file in errors.
    pub fn take(&mut self, name: &str, shape: &[i64], kind: Kind, place: &str) -> Result<Tensor, PolicyError> {
        let tensor = self
            .tensors
            .remove(name)
            .ok_or_else(|| PolicyError::MissingTensor { name: name.to_owned(), place: place.to_owned() })?;
        if tensor.size() != shape {
            return Err(PolicyError::TensorShape {
                name: name.to_owned(),
                place: place.to_owned(),
                found: tensor.size(),
                expected: shape.to_vec(),
            });
        }
        Ok(tensor.to_kind(kind))
    }

    /// Fails, naming one of them, when tensors are left that nobody took.
    pub fn finish(self, place: &str) -> Result<(), PolicyError> {
        match self.tensors.into_keys().next() {
            Some(name) => Err(PolicyError::UnknownTensor { name, place: place.to_owned() }),
            None => Ok(()),
        }
    }
}

fn dtype_of(kind: Kind) -> Option<Dtype> {
    Some(match kind {
        Kind::Float => Dtype::F32,
        Kind::Double => Dtype::F64,
        Kind::Half => Dtype::F16,
        Kind::BFloat16 => Dtype::BF16,
        Kind::Int64 => Dtype::I64,
        Kind::Int => Dtype::I32,
        Kind::Bool => Dtype::BOOL,
        _ => return None,
    })
}

fn kind_of(dtype: Dtype) -> Option<Kind> {
    Some(match dtype {
        Dtype::F32 => Kind::Float,
        Dtype::F64 => Kind::Double,
        Dtype::F16 => Kind::Half,
        Dtype::BF16 => Kind::BFloat16,
        Dtype::I64 => Kind::Int64,
        Dtype::I32 => Kind::Int,
        Dtype::BOOL => Kind::Bool,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gives_back_what_was_written_and_the_same_content_gives_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("a/x.safetensors"), folder.path().join("y.safetensors"));
        let tensors = vec![
            ("w".to_owned(), Tensor::from_slice(&[1.5f32, -2.0, 3.0, 0.0]).view([2, 2]).tr()),
            ("n".to_owned(), Tensor::from_slice(&[7i64])),
        ];
        let metadata: BTreeMap<String, String> =
            ["a", "b", "c", "d"].iter().map(|key| ((*key).to_owned(), format!("{key}{key}"))).collect();
        write_tensors(&first, &tensors, &metadata).unwrap();
        write_tensors(&second, &tensors, &metadata).unwrap();
        assert_eq!(fs::read(&first).unwrap(), fs::read(&second).unwrap());
        let mut file = read_tensors(&first, Device::Cpu).unwrap();
        assert_eq!(file.metadata, metadata);
        let read = file.take("w", &[2, 2], Kind::Float, "x").unwrap();
        assert_eq!(Vec::<f32>::try_from(read.reshape([-1])).unwrap(), [1.5, 3.0, -2.0, 0.0]);
        assert!(
            matches!(file.take("v", &[1], Kind::Float, "x"), Err(PolicyError::MissingTensor { name, .. }) if name == "v")
        );
        assert!(matches!(file.finish("x"), Err(PolicyError::UnknownTensor { name, .. }) if name == "n"));
    }

    #[test]
    fn a_truncated_file_is_refused_and_no_partial_file_stays_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        write_tensors(&path, &[("w".to_owned(), Tensor::from_slice(&[1f32; 64]))], &BTreeMap::new()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 8]).unwrap();
        assert!(matches!(read_tensors(&path, Device::Cpu), Err(PolicyError::TensorFile { .. })));
    }
}
