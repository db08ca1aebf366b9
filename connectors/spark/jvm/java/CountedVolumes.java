// Tells Spark what a task of ours has written or read, so that its pages and its event log show it: each
// element ends with a volume, a number of rows and one of stored bytes, which is added to the metrics of the
// task. Spark compiles this text in its executors, as it compiles the code that it makes for a query; generics
// and lambdas are unknown there.

public Object generate(Object[] references) {
  return new CountedVolumes((String) references[0]);
}

final class CountedVolumes extends org.apache.spark.sql.execution.BufferedRowIterator {
  private static final int VOLUME_BYTES = 16;

  private final boolean isWritten;
  private scala.collection.Iterator elements;

  public CountedVolumes(String what) {
    isWritten = what.equals("written");
  }

  public void init(int index, scala.collection.Iterator[] inputs) {
    elements = inputs[0];
  }

  // Of what is written, a row has only the number of rows; of what is read, it has the element, and there is
  // none for an element without a message.
  protected void processNext() {
    while (currentRows.isEmpty() && elements.hasNext()) count((byte[]) elements.next());
  }

  private void count(byte[] element) {
    java.nio.ByteBuffer volume = java.nio.ByteBuffer.wrap(element, element.length - VOLUME_BYTES, VOLUME_BYTES);
    long rows = volume.getLong(), bytes = volume.getLong();
    org.apache.spark.executor.TaskMetrics metrics = org.apache.spark.TaskContext.get().taskMetrics();
    if (isWritten) {
      metrics.shuffleWriteMetrics().incRecordsWritten(rows);
      metrics.shuffleWriteMetrics().incBytesWritten(bytes);
      append(new GenericInternalRow(new Object[] {Long.valueOf(rows)}));
    } else if (element.length > VOLUME_BYTES) {
      metrics.shuffleReadMetrics().incRecordsRead(rows);
      metrics.shuffleReadMetrics().incRemoteBytesRead(bytes);
      append(new GenericInternalRow(new Object[] {element}));
    }
  }
}
