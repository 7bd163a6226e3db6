//! One sealed segment: a Parquet file that is written once, as a whole, and describes itself.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use arrow::array::RecordBatchReader;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use serde::{Deserialize, Serialize};

use crate::schema::{VERSION_KEY, column_docs};

/// Key of the list of units in a segment's metadata.
pub(crate) const UNITS_KEY: &str = "trace.units";

/// Key of the columns' documentation in a segment's metadata.
const COLUMNS_KEY: &str = "trace.columns";

/// Fast, and token columns shrink to a third.
const ZSTD_LEVEL: i32 = 3;

/// A unit within a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitEntry {
    /// The unit's key.
    pub key: String,
    /// How many of the segment's rows are its own; units follow each other in the order of the list.
    pub rows: usize,
}

/// A line of the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentEntry {
    /// Path below the log's folder, such as `phase=train/part-00003.parquet`.
    pub file: String,
    /// The file's size.
    pub bytes: u64,
    /// The units within.
    pub units: Vec<UnitEntry>,
}

impl SegmentEntry {
    /// The folder below the log's own: `phase=train`, or nothing.
    pub fn partition(&self) -> &str {
        self.file.rsplit_once('/').map_or("", |(partition, _)| partition)
    }

    /// The part's number, read from its name.
    pub(crate) fn part(&self) -> Option<u64> {
        part_number(self.file.rsplit('/').next().unwrap_or(&self.file))
    }
}

/// Name of the sealed segment of that number.
pub(crate) fn part_name(part: u64) -> String {
    format!("part-{part:05}.parquet")
}

/// The number in a sealed segment's name; `None` where it is not one.
pub(crate) fn part_number(name: &str) -> Option<u64> {
    name.strip_prefix("part-")?.strip_suffix(".parquet")?.parse().ok()
}

/// Name of the file that becomes that segment.
pub(crate) fn temporary_name(part: u64) -> String {
    format!(".part-{part:05}.tmp")
}

/// True for a file that a crash left behind while it was being written.
pub(crate) fn is_temporary(name: &str) -> bool {
    name.starts_with(".part-") && name.ends_with(".tmp")
}

/// Writes and seals: temporary file, sync, rename, sync of the folder. Returns the size in bytes.
pub(crate) fn seal(
    folder: &Path,
    part: u64,
    units: &[UnitEntry],
    batch: &RecordBatch,
    schema: &SchemaRef,
) -> Result<u64, ParquetError> {
    let temporary = folder.join(temporary_name(part));
    let file = write(&temporary, units, batch, schema)?;
    file.sync_all()?;
    let bytes = file.metadata()?.len();
    fs::rename(&temporary, folder.join(part_name(part)))?;
    sync_folder(folder)?;
    Ok(bytes)
}

fn write(path: &Path, units: &[UnitEntry], batch: &RecordBatch, schema: &SchemaRef) -> Result<File, ParquetError> {
    let version = schema.metadata().get(VERSION_KEY).cloned().unwrap_or_default();
    let columns = serde_json::Value::Object(column_docs(schema)).to_string();
    let units = serde_json::to_string(units).map_err(|e| ParquetError::External(Box::new(e)))?;
    let metadata = [(VERSION_KEY, version), (COLUMNS_KEY, columns), (UNITS_KEY, units)];
    let metadata = metadata.into_iter().map(|(key, value)| KeyValue::new(key.to_owned(), value)).collect();
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_key_value_metadata(Some(metadata))
        .build();
    let mut writer = ArrowWriter::try_new(File::create(path)?, schema.clone(), Some(properties))?;
    writer.write(batch)?;
    let mut file = writer.into_inner()?;
    file.flush()?;
    Ok(file)
}

/// The units that a sealed segment says it holds.
pub(crate) fn read_units(path: &Path) -> Result<Vec<UnitEntry>, ParquetError> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?;
    let metadata = reader.metadata().file_metadata();
    let units = metadata
        .key_value_metadata()
        .and_then(|all| all.iter().find(|kv| kv.key == UNITS_KEY))
        .and_then(|kv| kv.value.as_deref())
        .ok_or_else(|| ParquetError::General(format!("its metadata lacks {UNITS_KEY}")))?;
    let units: Vec<UnitEntry> = serde_json::from_str(units).map_err(|e| ParquetError::External(Box::new(e)))?;
    let (listed, found) = (units.iter().map(|u| u.rows).sum::<usize>(), metadata.num_rows());
    if i64::try_from(listed).ok() != Some(found) {
        return Err(ParquetError::General(format!("{found} rows, but its units list {listed}")));
    }
    Ok(units)
}

/// Rows `first .. first + rows` of a sealed segment, of the named columns or all, as one batch.
pub(crate) fn read_rows(
    path: &Path,
    first: usize,
    rows: usize,
    columns: Option<&[&str]>,
) -> Result<RecordBatch, ParquetError> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?;
    let mask = match columns {
        Some(names) => ProjectionMask::columns(builder.parquet_schema(), names.iter().copied()),
        None => ProjectionMask::all(),
    };
    let reader =
        builder.with_projection(mask).with_offset(first).with_limit(rows).with_batch_size(rows.max(1)).build()?;
    let schema = reader.schema();
    let batches = reader.collect::<Result<Vec<_>, _>>()?;
    Ok(concat_batches(&schema, &batches)?)
}

/// Makes names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_name_is_told_from_a_temporary_one() {
        assert_eq!(part_number(&part_name(7)), Some(7));
        assert_eq!(part_number(&part_name(1_234_567)), Some(1_234_567));
        assert_eq!(part_number(&temporary_name(7)), None);
        assert!(is_temporary(&temporary_name(7)) && !is_temporary(&part_name(7)));
    }
}
